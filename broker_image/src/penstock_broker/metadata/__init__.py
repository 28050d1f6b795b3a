"""What the controller tells this broker: the session with it, and the cluster as it drew it.

    discovery (who answers?) ──▶ session ──images──▶ image ──▶ who looks things up

Belongs here: finding controllers (`discovery`), the session and the calls on it (`session`), the
applied picture of brokers, topics and leaders (`image`). Never here: what follows from an image for
replicas or coordinators (whoever owns those is told), decisions about leaders or ISRs (the
controller's machine), answers to clients (`services`).
"""
