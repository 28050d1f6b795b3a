"""Local mode: a whole cluster as processes on this machine, from a Kubernetes manifest.

    manifest ──▶ LocalCluster ──▶ controller, brokers (child processes) ──▶ topics applied
                     │ writes state.json: which processes run, where; restarts crashed ones
    penstock local up|status|down|logs · the demo · tests · benchmarks

Belongs here: starting, watching and stopping the server processes on one machine, and finding them
from another process. Never here: anything a broker needs in Kubernetes, and any decision about
partitions; the controller makes those in both places.

Promise: nothing is left running. Children watch a pipe to the process that started them and end
when it closes, however that process ended; a recorded process gets a signal only while its start
time still matches.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock_broker.local.cluster import LocalCluster

__all__ = ["LocalCluster"]


def __getattr__(name: str) -> Any:
    """Imports on demand: `penstock` reads `state` without the broker extra being installed."""
    if name == "LocalCluster":
        from penstock_broker.local.cluster import LocalCluster  # noqa: PLC0415 - see above

        return LocalCluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
