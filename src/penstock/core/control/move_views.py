"""What others are shown of moves: those that have not ended, and what each of them waits for."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from penstock.core.control.config import ControlConfig
from penstock.core.control.copies import Copies
from penstock.core.control.documents import TopicDocument
from penstock.core.control.draft import Stored, election_settings
from penstock.core.control.election import Liveness
from penstock.core.control.move_contract import MoveState
from penstock.core.control.moves import lacks, move_state
from penstock.core.control.partition import PartitionDocument
from penstock.core.types import NO_LEADER, BrokerId, TopicId

STUCK_MS: Final = 5 * 60 * 1_000
"""A copy of which no byte moved for so long is said to be stuck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyView:
    """One copy as its leader said it a moment ago. `known_for_ms`: since the controller first heard
    of it. `stalled_for_ms`: since bytes moved; 0: they do now, or none are left."""

    broker_id: BrokerId
    bytes_left: int
    bytes_per_second: int
    limited_by: str
    known_for_ms: int
    stalled_for_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveView:
    """A partition that is not settled, has data to delete, or damaged replicas.

    `waiting_for`: for people; empty while it goes on. `copies`: of those that copy, as far as the
    leader has said something lately.
    """

    topic: str
    topic_id: TopicId
    partition: int
    document: PartitionDocument
    state: MoveState
    waiting_for: str
    copies: tuple[CopyView, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """What a controller knows beside the documents. `without_space`: brokers to whose disks nothing
    is copied."""

    copies: Copies
    liveness: Liveness
    journaling: bool
    hibernating: bool
    without_space: Collection[BrokerId]
    now_ms: int


def moves_of(
    stored: Stored, config: ControlConfig, now: Now, topics: Collection[str]
) -> Iterator[MoveView]:
    """In order of topics and partitions; `topics` empty = all. Costs a scan of them."""
    for name in sorted(topics or stored.topics):
        topic = stored.topics.get(name)
        for index, document in enumerate(() if topic is None else topic.partitions):
            if topic is not None and document.uses_moves:
                yield _view(topic, index, document, config, now)


def _view(
    topic: TopicDocument,
    index: int,
    document: PartitionDocument,
    config: ControlConfig,
    now: Now,
) -> MoveView:
    found = (_copy(topic.topic_id, index, one, now) for one in document.state.adding)
    copies = tuple(copy for copy in found if copy is not None)
    waiting_for = _end_waits_for(document, now)
    if document.target:
        waiting_for = _begin_waits_for(document, now)
        left = [copy.bytes_left for copy in copies]
        caught_up = len(left) == len(document.new) and not any(left)
        if not waiting_for:
            waiting_for = _stuck(copies)
        if not waiting_for and caught_up:
            settings = election_settings(config.topic_config(topic.configs), len(document.target))
            isr = (*document.state.isr, *document.state.adding)
            waiting_for = lacks(document, isr, now.liveness, settings)
    return MoveView(
        topic=topic.name,
        topic_id=topic.topic_id,
        partition=index,
        document=document,
        state=move_state(document),
        waiting_for=waiting_for,
        copies=copies,
    )


def _copy(topic_id: TopicId, partition: int, broker_id: BrokerId, now: Now) -> CopyView | None:
    heard = now.copies.known(topic_id, partition, broker_id, now.now_ms)
    if heard is None:
        return None
    copy, limited_by = heard.progress, heard.progress.limited_by
    if copy.bytes_left and broker_id in now.without_space:
        limited_by = f"the disk of broker {broker_id}, which is nearly full"
    return CopyView(
        broker_id=broker_id,
        bytes_left=copy.bytes_left,
        bytes_per_second=copy.bytes_per_second,
        limited_by=limited_by,
        known_for_ms=now.now_ms - heard.since_ms,
        stalled_for_ms=heard.heard_ms - heard.moved_ms,
    )


def _stuck(copies: Collection[CopyView]) -> str:
    """The copy that has waited longest, if that is long; else ""."""
    waiting = [copy for copy in copies if copy.stalled_for_ms >= STUCK_MS]
    if not waiting:
        return ""
    worst = max(waiting, key=lambda copy: copy.stalled_for_ms)
    why = f": {worst.limited_by}" if worst.limited_by else ""
    minutes = worst.stalled_for_ms // 60_000
    return f"broker {worst.broker_id}, which has copied nothing for {minutes} min{why}"


def _begin_waits_for(document: PartitionDocument, now: Now) -> str:
    state, new = document.state, document.new
    absent = [one for one in new if one not in now.liveness.staying]
    deleting = [one for one in new if one in state.dropping]
    if now.journaling:
        return "the metadata store, which is unavailable"
    if now.hibernating:
        return "the cluster to wake"
    if state.leader == NO_LEADER:
        return "a leader"
    if absent:
        return f"{_brokers(absent)}, with no session or shutting down"
    if deleting:
        return f"{_brokers(deleting)} to delete what was copied before"
    waiting = [one for one in new if one not in state.adding]
    return f"its turn on {_brokers(waiting)}" if waiting else ""


def _end_waits_for(document: PartitionDocument, now: Now) -> str:
    state = document.state
    away = [one for one in state.dropping if one not in now.liveness.live]
    if state.dropping:
        session = f"; {_brokers(away)} with no session" if away else ""
        return f"{_brokers(state.dropping)} to delete its data{session}"
    return f"the replica on {_brokers(state.damaged)} to be mended"


def _brokers(brokers: Collection[BrokerId]) -> str:
    named = ", ".join(map(str, brokers))
    return f"broker {named}" if len(brokers) == 1 else f"brokers {named}"
