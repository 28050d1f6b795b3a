"""The records of `__transactions`: keys and values as compact JSON, versioned.

    key                  value
    [1,"id",id]          owner of the transactional id, and since when
    [1,"branch",id,n]    producer id and epoch, OPEN or IDLE, participants, those that must store an
                         end (finishing), how the last transaction ended
    [1,"ledger",id]      the last batch of an application, rows of the last few, refused runs
    [1,"confirm"]        never stored: see CONFIRMATION_KEY

A plain producer is branch 0. A value's "v" is the format's version. The newest value per key is the
state; a null value deletes it, so a compacted log contains exactly what is live (I16). Participants
are sorted: the same state is the same bytes. One branch record is a decision (I11): it changes the
branch from OPEN(epoch) to IDLE(epoch + 1) and moves all that joined to `finishing`. A key of
another version or kind was written by a newer broker and is skipped; a value that contradicts
itself is corruption.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from penstock.core.json_records import Format, as_text, encode
from penstock.core.types import ProducerId, TopicId
from penstock.core.value import value

VERSION: Final = 1
_FORMAT: Final = Format("transactions", "the ids of its partition are unavailable")


# ---------------------------------------------------------------- what a transaction touches


@dataclass(frozen=True, slots=True, order=True)
class PartitionParticipant:
    """A partition that has, or had, batches of a transaction."""

    topic_id: TopicId
    partition: int

    def __str__(self) -> str:
        return f"partition/{self.topic_id}/{self.partition}"


@dataclass(frozen=True, slots=True, order=True)
class GroupParticipant:
    """A consumer group that has, or had, offsets of a transaction."""

    group_id: str

    def __str__(self) -> str:
        return f"group/{self.group_id}"


Participant = PartitionParticipant | GroupParticipant
"""Its `str` is the only textual form, in decisions, metrics and messages."""
Participants = frozenset[Participant]
NO_PARTICIPANTS: Participants = frozenset()


class EndReason(Enum):
    """What ended a transaction. Values are stored in records.

    SUPERSEDED: a newer run of the application began, or others of the batch were committed.
    """

    PRODUCER = "producer"
    TIMEOUT = "timeout"
    OPERATOR = "operator"
    FENCED = "fenced"
    SUPERSEDED = "superseded"
    MEMBER_GONE = "member gone"


# ---------------------------------------------------------------- keys


@dataclass(frozen=True, slots=True)
class IdKey:
    transactional_id: str


@dataclass(frozen=True, slots=True)
class BranchKey:
    transactional_id: str
    branch: int


@dataclass(frozen=True, slots=True)
class LedgerKey:
    transactional_id: str


Key = IdKey | BranchKey | LedgerKey


# ---------------------------------------------------------------- values


@dataclass(frozen=True, slots=True, kw_only=True)
class IdRecord:
    """The owner of the id. `used_ms` (since 1970): when it was taken. `timeout_ms`: of branch 0.

    superseded: the last instances that lost it: they never get it back.
    """

    instance_id: str = ""
    client_id: str = ""
    client_host: str = ""
    timeout_ms: int = 0
    used_ms: int = 0
    superseded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Attempt:
    """The attempt of a task for which a branch was begun."""

    run: str
    batch: int
    task: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Ending:
    """A decided transaction: (producer id, epoch) identifies one for ever."""

    producer_id: ProducerId
    epoch: int
    commit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LastEnd:
    """How a branch's last transaction ended, and when (since 1970)."""

    producer_id: ProducerId
    epoch: int
    commit: bool
    reason: EndReason
    time_ms: int


@value(frozen=True, slots=True, kw_only=True)
class BranchRecord:
    """IDLE: `epoch` is the next transaction's. OPEN (`is_open`): it is the current one's.

    started_ms (since 1970): when the last one was opened. `joined` and `finishing` never share a
    participant (none joins before it has stored the end of the previous transaction).
    """

    producer_id: ProducerId
    epoch: int = 0
    is_open: bool = False
    timeout_ms: int = 0
    started_ms: int = 0
    joined: Participants = NO_PARTICIPANTS
    finishing: Mapping[Participant, Ending] = field(default_factory=dict)
    last: LastEnd | None = None
    attempt: Attempt | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRecord:
    """The batches an application has committed. `batch` -1: none yet. Times since 1970.

    run: the newest that has begun a branch ("" = none is running). `batch_run`, `time_ms`: of
    the last batch. rows: (batch, rows) of the last few, oldest first. superseded: runs that are
    refused. digests: (batch, digest) of those batches whose digest is known. replay: the run that
    first had the answer that a batch is committed, in the newest start of a query that had it. A
    release that does not know digests or replay drops them with its next record.
    """

    checkpoint: str = ""
    run: str = ""
    used_ms: int = 0
    batch: int = -1
    batch_run: str = ""
    time_ms: int = 0
    rows: tuple[tuple[int, int], ...] = ()
    superseded: tuple[str, ...] = ()
    digests: tuple[tuple[int, int], ...] = ()
    replay: str = ""


Value = IdRecord | BranchRecord | LedgerRecord


# ---------------------------------------------------------------- out


CONFIRMATION_KEY: Final = encode([VERSION, "confirm"]).encode()
"""Its record has no value and no state: a coordinator that can commit it still leads."""


def encode_key(key: Key) -> bytes:
    """Equal keys are equal bytes, on which compaction relies."""
    match key:
        case IdKey(transactional_id):
            parts: list[Any] = ["id", transactional_id]
        case BranchKey(transactional_id, branch):
            parts = ["branch", transactional_id, branch]
        case LedgerKey(transactional_id):
            parts = ["ledger", transactional_id]
    return encode([VERSION, *parts]).encode()


def encode_value(value: Value) -> bytes:
    """`decode_value` of it, with the same kind of key, gives an equal object."""
    match value:
        case IdRecord():
            document = {
                "instance": value.instance_id,
                "client": value.client_id,
                "host": value.client_host,
                "timeout": value.timeout_ms,
                "used": value.used_ms,
                "superseded": value.superseded,
            }
        case BranchRecord():
            document = _branch(value)
        case LedgerRecord():
            document = {
                "checkpoint": value.checkpoint,
                "run": value.run,
                "used": value.used_ms,
                "batch": value.batch,
                "batch_run": value.batch_run,
                "time": value.time_ms,
                "rows": value.rows,
                "superseded": value.superseded,
            }
            if value.digests:
                document["digests"] = value.digests
            if value.replay:
                document["replay"] = value.replay
    return encode({"v": VERSION, **document}).encode()


def _branch(value: BranchRecord) -> dict[str, Any]:
    document: dict[str, Any] = {
        "pid": value.producer_id,
        "epoch": value.epoch,
        "open": value.is_open,
        "timeout": value.timeout_ms,
        "started": value.started_ms,
    }
    if value.joined:
        document["joined"] = _participants(value.joined)
    if value.finishing:
        by_ending: dict[Ending, list[Participant]] = {}
        for participant, ending in value.finishing.items():
            by_ending.setdefault(ending, []).append(participant)
        document["finishing"] = [
            [ending.producer_id, ending.epoch, ending.commit, _participants(found)]
            for ending, found in sorted(by_ending.items(), key=_by_epoch)
        ]
    if (last := value.last) is not None:
        document["last"] = [
            last.producer_id,
            last.epoch,
            last.commit,
            last.reason.value,
            last.time_ms,
        ]
    if (begun := value.attempt) is not None:
        document["attempt"] = [begun.run, begun.batch, begun.task, begun.attempt]
    return document


def _by_epoch(item: tuple[Ending, object]) -> tuple[int, int]:
    return item[0].producer_id, item[0].epoch


def _participants(found: Iterable[Participant]) -> list[Any]:
    """[{topic id: [partitions]}, [group ids]], sorted."""
    topics: dict[TopicId, list[int]] = {}
    groups = []
    for participant in found:
        match participant:
            case PartitionParticipant(topic_id, partition):
                topics.setdefault(topic_id, []).append(partition)
            case GroupParticipant(group_id):
                groups.append(group_id)
    return [{t: sorted(topics[t]) for t in sorted(topics)}, sorted(groups)]


# ---------------------------------------------------------------- back


def decode_key(key: bytes | None) -> Key | None:
    """The key, None for one unknown to this version. Raises ClusterError(DATA_CORRUPTED)."""
    fields = _FORMAT.decode(key, list)
    version, kind, *rest = fields if len(fields) >= 2 else (None, None)
    if version != VERSION:
        return None
    try:
        match kind:
            case "id":
                (transactional_id,) = rest
                return IdKey(as_text(transactional_id))
            case "branch":
                transactional_id, branch = rest
                return BranchKey(as_text(transactional_id), int(branch))
            case "ledger":
                (transactional_id,) = rest
                return LedgerKey(as_text(transactional_id))
    except (TypeError, ValueError) as error:
        raise _FORMAT.corrupt(key, error) from error
    return None


def decode_value(key: Key, value: bytes) -> Value:
    """The value of a known key. Raises ClusterError(DATA_CORRUPTED)."""
    document = _FORMAT.decode(value, dict)
    try:
        match key:
            case IdKey():
                return IdRecord(
                    instance_id=document["instance"],
                    client_id=document["client"],
                    client_host=document["host"],
                    timeout_ms=int(document["timeout"]),
                    used_ms=int(document["used"]),
                    superseded=tuple(document["superseded"]),
                )
            case BranchKey():
                return _read_branch(document)
            case LedgerKey():
                return LedgerRecord(
                    checkpoint=document["checkpoint"],
                    run=document["run"],
                    used_ms=int(document["used"]),
                    batch=int(document["batch"]),
                    batch_run=document["batch_run"],
                    time_ms=int(document["time"]),
                    rows=tuple((int(batch), int(rows)) for batch, rows in document["rows"]),
                    superseded=tuple(document["superseded"]),
                    digests=tuple(
                        (int(batch), int(digest)) for batch, digest in document.get("digests", ())
                    ),
                    replay=document.get("replay", ""),
                )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _FORMAT.corrupt(value, error) from error


def _read_branch(document: dict[str, Any]) -> BranchRecord:
    joined = frozenset(_read_participants(document["joined"])) if "joined" in document else None
    finishing = {}
    for producer_id, epoch, commit, participants in document.get("finishing", ()):
        ending = Ending(ProducerId(int(producer_id)), int(epoch), bool(commit))
        finishing.update(dict.fromkeys(_read_participants(participants), ending))
    last, attempt = document.get("last"), document.get("attempt")
    record = BranchRecord(
        producer_id=ProducerId(int(document["pid"])),
        epoch=int(document["epoch"]),
        is_open=bool(document["open"]),
        timeout_ms=int(document["timeout"]),
        started_ms=int(document["started"]),
        joined=NO_PARTICIPANTS if joined is None else joined,
        finishing=finishing,
        last=None if last is None else _read_last(last),
        attempt=None if attempt is None else Attempt(*attempt),
    )
    if record.joined and not record.is_open:
        raise ValueError("an idle branch has participants")
    if not record.joined.isdisjoint(record.finishing):
        raise ValueError("a participant has joined before it heard of the transaction before")
    return record


def _read_last(found: list[Any]) -> LastEnd:
    producer_id, epoch, commit, reason, time_ms = found
    return LastEnd(
        producer_id=ProducerId(int(producer_id)),
        epoch=int(epoch),
        commit=bool(commit),
        reason=EndReason(reason),
        time_ms=int(time_ms),
    )


def _read_participants(found: Any) -> list[Participant]:
    topics, groups = found
    participants: list[Participant] = [
        PartitionParticipant(TopicId(topic_id), int(partition))
        for topic_id, partitions in topics.items()
        for partition in partitions
    ]
    participants += [GroupParticipant(as_text(group_id)) for group_id in groups]
    return participants
