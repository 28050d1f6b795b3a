"""Faults of connections that are made in a cluster, for alerts to fire over."""

import socket
from contextlib import ExitStack
from typing import Final

from support.cluster import Cluster
from support.few_descriptors_child import DESCRIPTORS
from support.few_descriptors_child import LAUNCHER as FEW_DESCRIPTORS

from penstock_broker.descriptors import connections_max

__all__ = ["FEW_DESCRIPTORS", "connections_full"]

_HTTP2: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""What a client says first: its preface, and that it changes no setting (RFC 9113, 3.4)."""


def connections_full(cluster: Cluster, stack: ExitStack) -> None:
    """As many as a broker with few descriptors lets a port have, of clients that ask nothing."""
    host, _, port = cluster.brokers[2].address.rpartition(":")
    for _ in range(connections_max(DESCRIPTORS)):
        client = stack.enter_context(socket.create_connection((host, int(port)), 20))
        client.sendall(_HTTP2)
