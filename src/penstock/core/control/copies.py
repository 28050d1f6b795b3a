"""Which copies run now: what their leaders say of them, and whose turn is next. In memory only.

    heartbeats of leaders ──▶ Copies.heard      a tick ──▶ activate: queued moves begin

A broker receives few copies at a time that take long, so that each of them ends soon, and many that
do not. A controller that takes over knows no sizes yet: it begins a few, and twice as many as have
ended when it looks again. The order is the same for every controller: what is urgent, then by topic
and partition.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from penstock.core.control.contract import CopyProgress
from penstock.core.control.documents import TopicDocument
from penstock.core.control.draft import Draft, Stored
from penstock.core.control.election import Liveness
from penstock.core.control.moves import activate as activated
from penstock.core.control.partition import PartitionDocument
from penstock.core.control.switching import note_switch, switched_if_ready
from penstock.core.types import NO_LEADER, BrokerId, MoveReason, TopicId

LARGE_BYTES: Final = 64 * 1024 * 1024
LARGE_MAX: Final = 2
"""Copies to one broker with more than LARGE_BYTES left."""
UNKNOWN_MAX: Final = 8
"""Copies to one broker of which no leader has said yet how much is left: each may be large. Small
ones end before anybody says it. Where they have, at the next look, a second later, those after them
are taken for small too: twice as many may begin, up to COPIES_MAX."""
COPIES_MAX: Final = 32
"""Copies to one broker in all."""
SILENCE_MAX_MS: Final = 15_000
"""Leaders say how far copies are every two seconds. What was said before is not shown any more: the
leader may be another one since, of a release that does not say it."""
_URGENCY: Final = {why: rank for rank, why in enumerate(MoveReason)}

Key = tuple[TopicId, int, BrokerId]
"""Topic id, partition, who copies."""


@dataclass(frozen=True, slots=True)
class Heard:
    """The newest that a leader said of a copy, and when: first, last, and last of bytes that moved
    (or of none left)."""

    progress: CopyProgress
    since_ms: int
    heard_ms: int
    moved_ms: int


class Copies:
    """What leaders have said of running copies."""

    def __init__(self) -> None:
        self._heard: dict[Key, Heard] = {}
        self._unsaid: set[Key] = set()
        """Running at the last look, and no leader had said anything of them."""

    def heard(
        self, stored: Stored, leader: BrokerId, copies: Iterable[CopyProgress], now_ms: int
    ) -> None:
        """A heartbeat of `leader`. What it says of partitions that others lead does not count."""
        for copy in copies:
            topic = stored.topics.get(stored.names.get(copy.topic_id, ""))
            if topic is None or not 0 <= copy.partition < len(topic.partitions):
                continue
            state = topic.partitions[copy.partition].state
            if state.leader == leader and copy.broker_id in state.adding:
                key = (copy.topic_id, copy.partition, copy.broker_id)
                known = self._heard.get(key)
                moves = known is None or copy.bytes_per_second > 0 or copy.bytes_left == 0
                self._heard[key] = Heard(
                    copy,
                    since_ms=now_ms if known is None else known.since_ms,
                    heard_ms=now_ms,
                    moved_ms=now_ms if known is None or moves else known.moved_ms,
                )

    def of(self, topic_id: TopicId, partition: int, broker_id: BrokerId) -> CopyProgress | None:
        """The newest, however old; None: nothing was said yet."""
        heard = self._heard.get((topic_id, partition, broker_id))
        return None if heard is None else heard.progress

    def known(
        self, topic_id: TopicId, partition: int, broker_id: BrokerId, now_ms: int
    ) -> Heard | None:
        """What its leader says of it now. None: it has said nothing lately, so nobody knows."""
        heard = self._heard.get((topic_id, partition, broker_id))
        return None if heard is None or now_ms - heard.heard_ms > SILENCE_MAX_MS else heard

    def looked(self, running: set[Key]) -> Counter[BrokerId]:
        """Forgets copies that have ended. How many did, by who received them, since the last look
        and before their leaders said anything of them."""
        ended = Counter(broker_id for _, _, broker_id in self._unsaid - running)
        for key in self._heard.keys() - running:
            del self._heard[key]
        self._unsaid = running - self._heard.keys()
        return ended

    def begun(self, topic_id: TopicId, partition: int, broker_id: BrokerId) -> None:
        """Counts at the next look."""
        self._unsaid.add((topic_id, partition, broker_id))


class _Slots:
    """How many more copies each broker may receive."""

    def __init__(self, ended: Counter[BrokerId]) -> None:
        """`ended`: as `Copies.looked` says."""
        self._ended = ended
        self._all: Counter[BrokerId] = Counter()
        self._large: Counter[BrokerId] = Counter()
        self._unknown: Counter[BrokerId] = Counter()

    def take(self, broker_id: BrokerId, progress: CopyProgress | None) -> None:
        self._all[broker_id] += 1
        if progress is None:
            self._unknown[broker_id] += 1
        elif progress.bytes_left > LARGE_BYTES:
            self._large[broker_id] += 1

    def free(self, broker_id: BrokerId) -> bool:
        return (
            self._all[broker_id] < COPIES_MAX
            and self._large[broker_id] < LARGE_MAX
            and self._unknown[broker_id] < max(UNKNOWN_MAX, 2 * self._ended[broker_id])
        )


def activate(draft: Draft, copies: Copies, liveness: Liveness) -> None:
    """Begins queued moves as far as there are slots; ends those that only waited for an ISR."""
    running = {
        (topic.topic_id, index, broker_id)
        for topic, index, document in _moving(draft)
        for broker_id in document.state.adding
    }
    slots = _Slots(copies.looked(running))
    for topic_id, index, broker_id in running:
        slots.take(broker_id, copies.of(topic_id, index, broker_id))
    if draft.journaling or draft.cluster.hibernating:
        return
    for topic, index, document in sorted(_moving(draft), key=_turn):
        if not document.new:
            after = switched_if_ready(draft, topic, document, liveness)
        else:
            after = _begun(document, slots, liveness)
        if after is document:
            continue
        draft.put_partition(topic.name, index, after)
        draft.stored_only = True
        for broker_id in set(after.state.adding).difference(document.state.adding):
            copies.begun(topic.topic_id, index, broker_id)
        if not after.target:
            note_switch(draft, topic.name, index, document, after)
        else:
            draft.detail(
                "copying begins",
                topic=topic.name,
                partition=index,
                adding=after.state.adding,
                why=after.why,
                version=after.state.version,
            )


def _begun(document: PartitionDocument, slots: _Slots, liveness: Liveness) -> PartitionDocument:
    state = document.state
    waiting = [one for one in document.new if one not in state.adding]
    able = state.leader != NO_LEADER and liveness.staying.issuperset(document.new)
    deleted = set(waiting).isdisjoint(state.dropping)
    if not waiting or not able or not deleted or not all(map(slots.free, waiting)):
        return document
    for broker_id in waiting:
        slots.take(broker_id, None)
    return activated(document)


def _moving(draft: Draft) -> Iterator[tuple[TopicDocument, int, PartitionDocument]]:
    for name in sorted(draft.moving):
        topic = draft.topic(name)
        assert topic is not None
        for index, document in enumerate(topic.partitions):
            if document.target:
                yield topic, index, document


def _turn(one: tuple[TopicDocument, int, PartitionDocument]) -> tuple[int, str, int]:
    topic, index, document = one
    assert document.why is not None
    return _URGENCY[document.why], topic.name, index
