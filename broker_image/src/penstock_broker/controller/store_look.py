"""Finds what somebody else has changed in the metadata store, also while nothing is written there.

    every LOOK_S, and before this process stops ─▶ read_all ─▶ versions ─▶ StoreSeen ─▶ machine
        ─▶ as decided: nothing    ─▶ others: it reads again, and undoes what was changed by hand

Whoever takes over believes what is stored: a topic whose document somebody has deleted would not
exist for it, and an older one, applied again, would give its partitions leaders and members of
then. The active controller knows better, but a conflict shows it only with its next write, and a
quiet cluster has none for days.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from penstock.core.control import ControllerMachine
from penstock.core.control import contract as c
from penstock_broker.clock import Clock
from penstock_broker.controller.metadata_store.interface import (
    MetadataStore,
    StoreUnavailableError,
)

LOOK_S: Final = 300.0
"""A list of 5,000 topics takes the API server and a controller a tenth of a second."""
_LEAVING_S: Final = 2.0
_AGAIN_S: Final = 0.05


class StoreLook:
    """Of one controller process; `run` it beside the rest, and `settle` before it ends."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        deciding: Callable[[], ControllerMachine | None],
        feed: Callable[[c.Event], None],
    ) -> None:
        """`store`: itself, without a journal. `deciding`: the machine, while it decides and writes
        to the store; else None. `feed`: of that machine."""
        self._store = store
        self._clock = clock
        self._deciding = deciding
        self._feed = feed

    async def run(self, every_s: float) -> None:
        """Until cancelled."""
        while True:
            await self._clock.sleep(every_s)
            await self._look()

    async def settle(self) -> None:
        """Looks until all is as this controller has decided, 2 s at most: the next controller
        believes what is stored."""
        with suppress(TimeoutError):
            async with self._clock.timeout(_LEAVING_S):
                while await self._look():
                    await self._clock.sleep(_AGAIN_S)

    async def _look(self) -> bool:
        """Whether something differs; it may be on its way by this controller's own hand."""
        machine = self._deciding()
        if machine is None:
            return False
        at = machine.stored.metadata_version
        try:
            found = await self._store.read_all()
        except StoreUnavailableError:
            return False  # the next write meets that, too, and says so
        if machine is not self._deciding():
            return False
        versions = {key: one.version for key, one in found.items()}
        self._feed(c.StoreSeen(versions=versions, metadata_version=at))
        return versions != machine.stored.versions
