"""What a controller in this process gets from outside: a store of the test's, all else as ships."""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from penstock.rpc.transport import GrpcTransport
from penstock_broker.clock import Clock, SystemClock
from penstock_broker.controller.metadata_store.interface import (
    BlockingStore,
    Change,
    MetadataStore,
    StoredText,
    StoreUnavailableError,
)
from penstock_broker.controller.metadata_store.memory import MemoryMetadataStore
from penstock_broker.controller.metadata_store.threaded import ThreadedStore
from penstock_broker.controller.seams import ControllerSeams


@contextmanager
def threaded(store: BlockingStore) -> Iterator[ThreadedStore]:
    """As a controller has it; its threads end with the context."""
    with ThreadPoolExecutor(1) as documents, ThreadPoolExecutor(1) as lease:
        yield ThreadedStore(store, documents, lease)


@contextmanager
def seams_on(
    store: BlockingStore,
    clock: Clock | None = None,
    around: Callable[[MetadataStore], MetadataStore] = lambda store: store,
) -> Iterator[ControllerSeams]:
    """`around`: puts something between the controller and the store."""
    with threaded(store) as adapted:
        yield ControllerSeams(
            clock=clock or SystemClock(),
            transport=GrpcTransport(),
            store=around(adapted),
            holder=str(uuid.uuid4()),
            new_id=lambda: str(uuid.uuid4()),
        )


class Leaving(MemoryMetadataStore):
    """It can be unavailable, for everything."""

    away = False

    def _check(self) -> None:
        if self.away:
            raise StoreUnavailableError("planted: away")

    def read_all(self) -> dict[str, StoredText]:
        self._check()
        return super().read_all()

    def write(self, stages: Sequence[Sequence[Change]]) -> Mapping[str, str]:
        self._check()
        return super().write(stages)

    def acquire_lease(self, holder: str, duration_ms: int) -> bool:
        self._check()
        return super().acquire_lease(holder, duration_ms)
