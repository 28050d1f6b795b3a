"""The servers: brokers that store and serve partitions, the controller, and local clusters of both.

Belongs here: shells. gRPC services, the store, streams between brokers, sessions with the
controller, processes and signals. `penstock.core` makes every decision about replication, metadata
and groups.
Never here: a second implementation of who leads, what is committed, or what an ISR is; client code.

    local/        a whole cluster on one machine
    controller/   the controller's process and its metadata store
    broker/       the broker's process: connects the following
    services/     what clients, admins, followers and controllers call
    transactions/ the shell around the transaction coordinators, calls between brokers
    maintenance/  retention, compaction, disk space
    groups/       the shell around the group coordinators
    logged/       machines whose state is a log: their hosts, topics and leaders
    replication/  the shell around the replica machines: group commit, feeding, following
    metadata/     the session with the controller, the cluster's metadata
    serving/      what every gRPC server has: the edge, health, reflection
    store/        partitions in RocksDB, behind a seam

Imports only go downwards in this list; `.importlinter` enforces it.
"""
