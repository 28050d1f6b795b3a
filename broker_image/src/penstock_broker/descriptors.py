"""File descriptors of a server: as many as it may have, and how many of them connections may take.

    limit of the process ─┬─ KEPT: the store, journals, logs, connections to other servers
                          └─ the rest, in equal shares: connections of each port

A connection takes a descriptor before anybody knows who it is from. If connections could take all,
whoever reaches a port could end the process: its store opens files, and probes need one each.
"""

import resource
from contextlib import suppress
from typing import Final

PORTS: Final = 8
"""At which a server may listen, at most."""
CONNECTIONS_MAX: Final = 30_000
"""Of one port, however many descriptors there are: each takes memory. As Linux is set, a host can
connect to one port some 28,000 times, so it leaves others room."""
KEPT: Final = 1_000
"""Descriptors that are no connections of clients. RocksDB may have 512 files open."""
_WANTED: Final = PORTS * CONNECTIONS_MAX + KEPT


def raise_limit() -> int:
    """Has the process use what its hard limit allows, up to what it can need; returns the limit.

    Container runtimes start processes with 1,024, and allow many more to who asks.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        with suppress(ValueError, OSError):  # macOS: its kernel allows less than the hard one says
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return descriptors_max()


def descriptors_max() -> int:
    """How many descriptors the process may have now, as far as it can need them."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _WANTED if soft == resource.RLIM_INFINITY else soft


def connections_max(descriptors: int) -> int:
    """How many connections each port may have at one time, of a process with that many descriptors.

    All ports together leave `KEPT` of them, or half if there are few.
    """
    left = descriptors - min(KEPT, descriptors // 2)
    return max(1, min(CONNECTIONS_MAX, left // PORTS))
