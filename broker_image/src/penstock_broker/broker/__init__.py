"""The broker process: configuration, controller session, cluster image, life cycle.

Belongs here: what a broker is outside its RPCs and its replicas: start and stop, the session with
the controller, the applied picture of the cluster, disk space, retention. Never here: answers to
clients (`services`), replication (`replication`), how logs are kept (`store`), and decisions about
partitions (`penstock.core.replication`, `penstock.core.control`).
"""
