"""The Python client: producer, consumer and admin, an async core with a sync facade.

What belongs here: turning user calls into the protocol's messages and back, batching, retries
that keep order, prefetching, metadata, group membership, conversion to
Arrow. What never may: knowledge of brokers' insides, of Spark or of the command line; imports of
numpy, pyarrow, zstandard or lz4 at import time; a second copy of any logic for the sync clients.

One package per subject, from the top layer to the bottom (`.importlinter` has the layers):

    sync                    the sync clients; one event loop thread per process
    workers, transformer    loops that run a user's handlers
    admin                   topics, configs, groups, transactions
    producer, transaction   accumulator → lanes (pure) → sender → links; machine (pure) → manager
    consumer                fetch states (pure) → fetcher; positions, commits; bounded ranges
    group                   membership (pure) → link
    cluster                 connections, metadata, leaders, coordinators

Beside them: what all of them share, such as settings and the data that users get. The guarantees
about order and duplicates are kept in `producer/lane.py`.

Names are imported with the first that is used (`exported.py`): to import all of them takes 0.4 s of
a core, and the shell's completion needs none.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.client.exported import *  # noqa: F403 - what mypy and editors read
    from penstock.client.exported import __all__ as __all__


def __getattr__(name: str) -> Any:
    """What `exported` exports, and its `__all__`."""
    if name == "__all__" or not name.startswith("_"):
        exported = importlib.import_module("penstock.client.exported")
        if name in ("__all__", *exported.__all__):
            return getattr(exported, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
