"""By what a controller's shells reach everything outside: the process decides, or the simulator."""

from collections.abc import Callable
from dataclasses import dataclass

from penstock.rpc.transport import Transport
from penstock_broker.clock import Clock
from penstock_broker.controller.metadata_store.interface import MetadataStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSeams:
    """Time, peers, documents, and where names that nobody else has come from."""

    clock: Clock
    transport: Transport
    store: MetadataStore
    holder: str
    """This process, as the lease names it: another run of it has another name."""
    new_id: Callable[[], str]
    """A UUID each time: of a new cluster, of a new topic."""
