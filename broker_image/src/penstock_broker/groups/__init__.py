"""Group coordinators of this broker: the shell around `penstock.core.groups`.

Belongs here: which offsets partitions are led here (`coordinators`), one coordinator's loading,
appending and waiting for the high watermark (`coordinator`), the streams of members (`streams`),
creating the internal topic (`topic`), lag for Prometheus (`lag`). Never here: decisions about
members or offsets, wire types (but in `leaders`, which asks other brokers).
"""
