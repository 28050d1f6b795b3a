"""How a controller's shells reach everything outside; the process or the simulator sets it."""

from collections.abc import Callable
from dataclasses import dataclass

from penstock.rpc.transport import Transport
from penstock_broker.clock import Clock
from penstock_broker.controller.metadata_store.interface import MetadataStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSeams:
    """Time, peers, documents, and the source of unique ids."""

    clock: Clock
    transport: Transport
    store: MetadataStore
    holder: str
    """This process's name in the lease: each run has a different one."""
    new_id: Callable[[], str]
    """Returns a new UUID, for a new cluster or a new topic."""
