"""The session with the controller, and the cluster's metadata that it sends.

    discovery (who answers?) ──▶ session ──images──▶ image ──▶ look-ups

Belongs here: finding controllers (`discovery`), the session and the calls on it (`session`), the
applied metadata of brokers, topics and leaders (`image`). Never here: the consequences of an image
for replicas or coordinators (their owners are notified), decisions about leaders or ISRs (the
controller's machine), answers to clients (`services`).
"""
