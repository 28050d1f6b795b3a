"""What every gRPC server of Penstock has around its services: brokers and controllers.

Belongs here: the checks that each call passes (`edge`), the standard services, health and
reflection (`standard`), health on a port of its own (`probes`), where a server may listen without
TLS (`plaintext`), who calls (`callers`; users by `tokens`; until when: `expiry`), which of two
addresses a caller used (`listener`), what a server requires of its Python interpreter
(`interpreter`). Never here: what a single service does, and anything that only
brokers or only controllers have.
"""
