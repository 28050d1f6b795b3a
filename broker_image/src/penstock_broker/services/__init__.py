"""What a broker answers: the gRPC services and the border where requests are checked.

Belongs here: from a request to events for replicas, and from their outcome to a response; limits
on what is in flight. Never here: decisions about partitions (the replica machine), writing logs
(`replication.writer`), talking to the controller (`metadata.session`).
"""
