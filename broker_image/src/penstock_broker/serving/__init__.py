"""What every gRPC server of Penstock has around its services, a broker's as a controller's.

Belongs here: the border that each call passes (`edge`), the services everyone expects: health and
reflection (`standard`), by which of two addresses a caller came in (`listener`), what a server
asks of the Python it runs on (`interpreter`). Never here: what a single service does, and anything
that only a broker or only a controller knows.
"""
