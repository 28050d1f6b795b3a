"""Reconciles all ConsumerGroups of one Cluster, a few at a time, in one task beside its worker.

    see (the Cluster, by the worker) ─┐
    heard (a watch event) ────────────┼─▶ list if dirty ─▶ due groups: observe ─▶ plan ─▶ carry
    time ─────────────────────────────┘                                   out ─▶ scale ─▶ report

The worker never waits for a group, and a failing group affects no other (I28). Each is reconciled
every `LOOK_MS`, less often when there are many: at most `LOOKS_PER_S`. Our own status writes come
back as watch events; they are recognized by what did not change, so that figures cost no listing.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from penstock.errors import Applied
from penstock.kubernetes.errors import KubernetesError
from penstock.kubernetes.names import PAUSED
from penstock.logs import EventLog
from penstock_operator.access import AccessRules, StoredRules
from penstock_operator.brokers import Brokers
from penstock_operator.events import Events
from penstock_operator.groups.carry import KIND
from penstock_operator.groups.look import Asked, Pass, Track
from penstock_operator.groups.model import GroupResource, View
from penstock_operator.groups.plan import owners_of
from penstock_operator.kube import OF_ALL, Kube

LOOK_MS: Final = 10_000
LOOKS_PER_S: Final = 20
_SOON_MS: Final = 1_000
_FAILED_MS: Final = 5_000
_RELIST_MS: Final = 300_000
_COALESCE_S: Final = 0.2
_AT_ONCE: Final = 4
_log = EventLog("penstock_operator.groups")


def monotonic_ms() -> int:
    return int(monotonic() * 1_000)


class Groups:
    """The ConsumerGroups of one Cluster. `run` it in a task, `close` it at the end."""

    def __init__(
        self,
        kube: Kube,
        events: Events,
        brokers: Brokers,
        where: tuple[str, str],
        clock_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        """`where`: namespace and name of the Cluster. `brokers` is closed with this."""
        self._kube, self._events, self._brokers = kube, events, brokers
        self._access = AccessRules(brokers, events)
        self._namespace, self._cluster = where
        self._clock_ms = clock_ms
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._wake = asyncio.Event()
        self._view: View | None = None
        self._known: dict[str, GroupResource] = {}
        self._tracks: dict[str, Track] = {}
        self._dirty = True
        self._listed_ms: int | None = None

    # ── Told by others ────────────────────────────────────────────────────────────────────

    def see(self, view: View) -> None:
        """Receives the Cluster as its worker sees it now."""
        before, self._view = self._view, view
        if before is None or _outline(before) != _outline(view):
            for track in self._tracks.values():
                track.next_ms = 0
            self._wake.set()

    def heard(self, body: Mapping[str, Any], *, deleted: bool) -> bool:
        """Receives a watch event; returns whether it changes anything."""
        known = self._known.get(body["metadata"]["uid"])
        if known is None and deleted:
            return False
        if known is not None and not deleted and _signature(known.body) == _signature(body):
            return False
        self._dirty = True
        self._wake.set()
        return True

    @property
    def are_gone(self) -> bool:
        """No ConsumerGroup of this Cluster exists any longer."""
        return self._listed_ms is not None and not self._dirty and not self._known

    async def close(self) -> None:
        await self._brokers.close()

    # ── The loop ──────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Runs until cancelled."""
        pause_s = 0.0
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            await asyncio.sleep(_COALESCE_S)
            self._wake.clear()
            pause_s = _FAILED_MS / 1_000
            try:
                await self.look()
                pause_s = self._pause_ms() / 1_000
            except KubernetesError as error:
                _log.warning("groups not listed", cluster=self._cluster, error=str(error))
            except Exception as error:  # noqa: BLE001 - a defect here must not end the Cluster's worker
                _log.defect("observing groups hit a defect", error, cluster=self._cluster)

    async def look(self) -> None:
        """One pass over the groups that are due. Raises KubernetesError if listing fails."""
        await self._list()
        view, now_ms = self._view, self._clock_ms()
        due = [
            (each, self._tracks[uid])
            for uid, each in self._known.items()
            if self._tracks[uid].next_ms <= now_ms
        ]
        if view is None or not due:
            return
        owners = owners_of(list(self._known.values()))
        admin, rules = None, StoredRules({})
        if view.desired is not None and not view.problem and not view.asleep:
            admin = await self._brokers.admin(view.desired)
            managed = [each.access for each, _ in due if each.manages_access]
            rules = await self._access.stored(view.desired, managed)
        asked = Asked(admin, self._access, rules)
        one = Pass(self._kube, self._events, view, owners, asked, self._clock_ms)
        async with asyncio.TaskGroup() as tasks:
            for resource, track in due:
                tasks.create_task(self._one(one, resource, track))

    def _pause_ms(self) -> int:
        if self._view is None:
            return _RELIST_MS
        times = [track.next_ms for track in self._tracks.values()]
        return max(0, min(times, default=self._clock_ms() + _RELIST_MS) - self._clock_ms())

    async def _list(self) -> None:
        now_ms = self._clock_ms()
        fresh = self._listed_ms is not None and now_ms - self._listed_ms < _RELIST_MS
        if fresh and not self._dirty:
            return
        self._dirty = False  # set again by any change from here on
        try:
            found = await self._kube.list(KIND, self._namespace)
        except BaseException:
            self._dirty = True
            raise
        self._listed_ms = now_ms
        before, self._known = self._known, {}
        for body in found:
            if body["spec"].get("cluster") != self._cluster:
                continue
            resource = GroupResource(body)
            self._known[resource.uid] = resource
            track = self._tracks.setdefault(resource.uid, Track())
            old = before.get(resource.uid)
            if old is None or _signature(old.body) != _signature(body):
                track.next_ms = 0
        self._tracks = {uid: self._tracks[uid] for uid in self._known}

    async def _one(self, one: Pass, resource: GroupResource, track: Track) -> None:
        """Errors affect only this group."""
        after_ms: int | None = _FAILED_MS
        async with self._slots:
            try:
                looked = await one.at(resource, track)
                after_ms = looked.after_ms
                if resource.uid in self._known:
                    self._known[resource.uid] = looked.resource
            except KubernetesError as error:
                self._doubt(error)
                if error.status in {404, 409}:
                    after_ms = _SOON_MS
                _log.warning("group not reconciled", group=resource.name, error=str(error))
                if error.status not in OF_ALL | {404, 409}:
                    await self._tell_refusal(one, resource, track, error)
            except Exception as error:  # noqa: BLE001 - a defect with one group must not end all
                _log.defect("observing a group hit a defect", error, group=resource.name)
        track.next_ms = self._clock_ms() + (self.look_ms if after_ms is None else after_ms)

    def _doubt(self, error: KubernetesError) -> None:
        """Lists again if a group may not be as it is known: it was deleted or changed, or the write
        may have succeeded without an answer. What is refused is not changed."""
        if error.status in {404, 409} or error.applied is not Applied.NO:
            self._dirty = True

    async def _tell_refusal(
        self, one: Pass, resource: GroupResource, track: Track, error: KubernetesError
    ) -> None:
        try:
            told = await one.tell_refusal(resource, track, error)
        except KubernetesError as again:
            self._doubt(again)
            _log.warning("status not written", group=resource.name, error=str(again))
        else:
            if resource.uid in self._known:
                self._known[resource.uid] = told

    @property
    def look_ms(self) -> int:
        """How often each group is reconciled."""
        return max(LOOK_MS, len(self._known) * 1_000 // LOOKS_PER_S)


def _signature(body: Mapping[str, Any]) -> tuple[object, ...]:
    """The part that a person or the API server changes; figures in a status are not part of it."""
    metadata = body["metadata"]
    annotations: Mapping[str, str] = metadata.get("annotations") or {}
    return (
        metadata.get("generation"),
        metadata.get("deletionTimestamp"),
        tuple(metadata.get("finalizers") or ()),
        annotations.get(PAUSED),
    )


def _outline(view: View) -> tuple[object, ...]:
    """The part of a Cluster whose change makes every group due at once."""
    return view.gone, view.desired, view.ready, bool(view.problem), view.asleep
