"""The metadata store of a world, and a controller's way to it: `MetadataStore`, with faults.

    MetaStore: documents, versions, a lease        SimStore: of one run of a controller
        every write a compare-and-swap                 slow, away, no answer, done later

What is asked of the store is carried out even if who asked has died meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.core.control.documents import (
    CLUSTER_KEY,
    TOPIC_KEY_PREFIX,
    decode_cluster,
    decode_topic,
)
from penstock.core.control.storage import (
    Change,
    Delete,
    Put,
    StoredText,
    StoreUnavailableError,
    WriteConflictError,
)
from penstock_sim.node_loop import NodeLoop
from penstock_sim.scheduler import RATE

if TYPE_CHECKING:
    from penstock_sim.world import World

_T = TypeVar("_T")
_PATIENCE_MS: Final = 250
"""So long at most a call takes whose store does not answer: 2 s of a controller."""


class MetaStore:
    """Documents with versions. Never loses anything."""

    def __init__(self, world: World) -> None:
        self.documents: dict[str, StoredText] = {}
        self.away: set[int] = set()
        """Controllers that cannot reach it."""
        self.slow = False
        self._world = world
        self._versions = 0
        self._holder = ""
        self._held_until_ms = 0.0

    # ------------------------------------------------------------ documents

    def apply(self, change: Change, *, learned: bool) -> str:
        """The new version; raises WriteConflictError.

        `learned`: what a journal tells who takes over.
        """
        stored = self.documents.get(change.key)
        version = None if stored is None else stored.version
        if version != change.expected:
            raise WriteConflictError(change.key, change.expected, version)
        self._versions += 1
        checks = self._world.checks
        checks.learning = self.controller_epoch() if learned else None
        try:
            if isinstance(change, Delete):
                del self.documents[change.key]
                checks.topic_removed(change.key.removeprefix(TOPIC_KEY_PREFIX))
            else:
                self.documents[change.key] = StoredText(change.text, str(self._versions))
                self._changed(change)
        finally:
            checks.learning = None
        return str(self._versions)

    def put_by_hand(self, key: str, text: str) -> None:
        """Whatever is there; nobody checks it."""
        self._versions += 1
        self.documents[key] = StoredText(text, str(self._versions))

    def delete_by_hand(self, key: str) -> None:
        """As `put_by_hand`."""
        del self.documents[key]

    def controller_epoch(self) -> int | None:
        """As stored; None: nothing is."""
        cluster = self.documents.get(CLUSTER_KEY)
        if cluster is None:
            return None
        return int(decode_cluster(cluster.text, CLUSTER_KEY).controller_epoch)

    def _changed(self, change: Put) -> None:
        checks = self._world.checks
        if change.key == CLUSTER_KEY:
            checks.registrations_changed(decode_cluster(change.text, change.key))
        else:
            checks.metadata_changed(decode_topic(change.text, change.key))

    # ------------------------------------------------------------ the lease

    def acquire(self, holder: str, duration_ms: int) -> bool:
        """`duration_ms` of a controller's time."""
        now_ms = self._world.scheduler.now_us / 1000
        if self._holder not in {"", holder} and now_ms < self._held_until_ms:
            return False
        self._holder, self._held_until_ms = holder, now_ms + duration_ms / RATE
        return True

    def release(self, holder: str) -> None:
        if self._holder == holder:
            self._holder = ""

    def bury_holder(self, living: set[str]) -> None:
        """Nobody waits for the lease of one that is not there any more."""
        if self._holder not in living:
            self._holder = ""

    def lose_lease(self) -> None:
        """Somebody has deleted it: whoever asks next gets it."""
        self._holder = ""


class SimStore:
    """A `MetadataStore`: `ThreadedStore` on the store of a cluster, without the threads."""

    detached = False
    journaling = False

    def __init__(
        self, world: World, node: int, loop: NodeLoop, is_learning: Callable[[], bool]
    ) -> None:
        """`is_learning`: this controller is taking over, and brokers may know more."""
        self._world = world
        self._meta = world.meta
        self._scheduler = world.scheduler
        self._node = node
        self._loop = loop
        self._is_learning = is_learning

    # ------------------------------------------------------------ MetadataStore

    async def read_all(self, *, take_over: bool = False) -> dict[str, StoredText]:
        """See the seam."""
        return await self._ask(lambda: dict(self._meta.documents))

    async def write(self, stages: Sequence[Sequence[Change]]) -> Mapping[str, str]:
        """See the seam. Some of it may pass unheard, also later; a pause may cut it in two."""
        changes = [change for stage in stages for change in stage]
        learned = self._is_learning()
        pauses = self._world.pauses
        cut = 0 if pauses is None else pauses.cut(len(changes))
        if not cut:
            return await self._send(changes, learned=learned)
        done = await self._send(changes[:cut], learned=learned)
        return {**done, **await self._send(changes[cut:], learned=learned)}

    async def _send(self, changes: list[Change], *, learned: bool) -> Mapping[str, str]:
        return await self._ask(
            lambda: self._carry_out(changes, learned=learned),
            lambda: self._write_late(changes, learned=learned),
        )

    async def acquire_lease(self, holder: str, duration_ms: int) -> bool:
        """See the seam."""
        return await self._ask(lambda: self._meta.acquire(holder, duration_ms))

    async def hold(self) -> bool:
        """No."""
        return False

    async def release_lease(self, holder: str) -> None:
        """See the seam."""
        await self._ask(lambda: self._meta.release(holder))

    # ------------------------------------------------------------ there and back

    async def _ask(self, act: Callable[[], _T], act_late: Callable[[], None] = lambda: None) -> _T:
        """What `act` returns or raises; `act_late` happens at once if only the way back is cut."""
        answer: asyncio.Future[_T] = self._loop.create_future()
        self._scheduler.after(self._latency_ms(), self._arrive, act, act_late, answer)
        return await answer

    def _latency_ms(self) -> float:
        between = self._scheduler.between
        return between(1, 10) + (between(10, 120) if self._meta.slow else 0)

    def _arrive(
        self, act: Callable[[], Any], act_late: Callable[[], None], answer: asyncio.Future[Any]
    ) -> None:
        chance, between = self._scheduler.chance, self._scheduler.between
        if self._node in self._meta.away:
            if self._world.journal and self._world.chaotic and chance(0.4):
                act_late()
            patience_ms = _PATIENCE_MS if chance(0.3) else between(0.5, 20)
            self._scheduler.after(patience_ms, self._settle, answer, None, _unheard())
            return
        result, error = None, None
        try:
            result = act()
        except (WriteConflictError, StoreUnavailableError) as refusal:
            error = refusal
        self._scheduler.after(between(0.1, 5), self._settle, answer, result, error)

    def _settle(self, answer: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
        if self._loop.dead or answer.done():
            return
        if self._world.pauses is not None:
            self._world.pauses.answered(self._node, self._loop)
        if error is None:
            self._loop.run(lambda: answer.set_result(result))
        else:
            self._loop.run(lambda: answer.set_exception(error))

    # ------------------------------------------------------------ writes

    def _carry_out(self, changes: list[Change], *, learned: bool) -> Mapping[str, str]:
        random = self._scheduler.random
        certain = not self._world.chaotic or self._world.edits is not None
        doubt = 1.0 if certain else random.random()
        if doubt < 0.01:
            self._write_late(changes, learned=learned)
            raise _unheard()
        done = changes[: random.randrange(len(changes) + 1)] if doubt < 0.03 else changes
        versions = {}
        for change in done:
            version = self._meta.apply(change, learned=learned)
            if isinstance(change, Put):
                versions[change.key] = version
        if doubt < 0.05:
            raise _unheard()
        return versions

    def _write_late(self, changes: list[Change], *, learned: bool) -> None:
        """After the call has ended, or nearly so."""

        def act() -> None:
            try:
                for change in changes:
                    self._meta.apply(change, learned=learned)
            except WriteConflictError:
                return

        self._scheduler.after(self._scheduler.between(1, 60), act)


def _unheard() -> StoreUnavailableError:
    """A new one each time: one that is kept would keep the frames of all that have raised it."""
    return StoreUnavailableError("no answer")
