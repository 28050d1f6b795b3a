"""The servers: brokers that store and serve partitions, the controller, and local clusters of both.

Belongs here: shells. gRPC services, the store, streams between brokers, sessions with the
controller, processes and signals. Every decision about replication, metadata and groups is asked
of `penstock.core`.
Never here: a second opinion on who leads, what is committed, or what an ISR is; client code.

    local/        a whole cluster on one machine
    controller/   the controller's process and its metadata store
    broker/       the broker's process: puts the following together
    services/     what clients, admins, followers and controllers call
    transactions/ the shell around the transaction coordinators, calls between brokers
    maintenance/  retention, compaction, disk space
    groups/       the shell around the group coordinators
    logged/       what a machine needs whose state is a log: its host, its topic, who has it
    replication/  the shell around the replica machines: group commit, feeding, following
    metadata/     the session with the controller, the picture of the cluster
    serving/      what every gRPC server has: the border, health, reflection
    store/        partitions in RocksDB, behind a seam

Imports go downwards in this list only; `.importlinter` has it as a contract.
"""
