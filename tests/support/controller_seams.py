"""What a controller in this process gets from outside: a store of the test's, all else as ships."""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from penstock.rpc.transport import GrpcTransport
from penstock_broker.clock import Clock, SystemClock
from penstock_broker.controller.metadata_store.interface import MetadataStore
from penstock_broker.controller.seams import Seams


@contextmanager
def seams_on(store: MetadataStore, clock: Clock | None = None) -> Iterator[Seams]:
    """Its threads end with the context."""
    with ThreadPoolExecutor(1) as documents, ThreadPoolExecutor(1) as lease:
        yield Seams(
            clock=clock or SystemClock(),
            transport=GrpcTransport(),
            store=store,
            documents=documents,
            lease=lease,
            holder=str(uuid.uuid4()),
            new_id=lambda: str(uuid.uuid4()),
        )
