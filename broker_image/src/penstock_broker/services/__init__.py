"""The gRPC services of a broker, and the checks on requests.

Belongs here: turning a request into events for replicas, and their outcome into a response; limits
on what is in flight. Never here: decisions about partitions (the replica machine), writing logs
(`replication.writer`), talking to the controller (`metadata.session`).
"""
