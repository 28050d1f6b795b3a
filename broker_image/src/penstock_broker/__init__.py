"""The servers: brokers that store and serve partitions, the controller, and local clusters of both.

Belongs here: shells. gRPC services, the store, streams between brokers, sessions with the
controller, processes and signals. Every decision about replication, metadata and groups is asked
of `penstock.core`.
Never here: a second opinion on who leads, what is committed, or what an ISR is; client code.

    broker/       the process: settings, session with the controller, picture of the cluster
    services/     what clients and admins call
    replication/  the shell around the replica machines: group commit, feeding, following
    groups/       the shell around the group coordinators
    store/        partitions in RocksDB, behind a seam
    controller/   the controller's process and its metadata store
    local/        a whole cluster on one machine
"""
