"""The records of `__consumer_offsets`: keys and values as compact JSON, versioned.

    key                                   value
    [1,"group",group]                     epochs, assignor, since when it is empty, last reset
    [1,"member",group,member]             its identity, subscription and timeouts
    [1,"target",group,member]             its target assignment
    [1,"current",group,member]            its epoch, what it may own, what it has yet to give up
    [1,"offset",group,topic id,partition] the committed offset
    [1,"pending",group,producer id]       offsets of a transaction that is open here
    [1,"ended",group,producer id]         how this producer's last transaction ended here

A value's "v" is the format's version. The newest value per key is the state; a null value deletes
it, so a compacted log contains exactly what is live (I16). Topic ids count; names are only for
people. Partition lists are sorted: the same state is the same bytes. A key of another version or
kind was written by a newer broker and is skipped; a value that contradicts itself is corruption.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.core.groups.catalog import Parts
from penstock.core.json_records import Format, as_text, encode, quote
from penstock.core.types import ProducerId, TopicId

VERSION: Final = 1
_FORMAT: Final = Format("offsets", "the group's partition is unavailable")


@dataclass(frozen=True, slots=True)
class GroupKey:
    group_id: str


@dataclass(frozen=True, slots=True)
class MemberKey:
    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class TargetKey:
    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class CurrentKey:
    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class OffsetKey:
    group_id: str
    topic_id: TopicId
    partition: int


@dataclass(frozen=True, slots=True)
class PendingKey:
    group_id: str
    producer_id: ProducerId


@dataclass(frozen=True, slots=True)
class EndedKey:
    group_id: str
    producer_id: ProducerId


Key = GroupKey | MemberKey | TargetKey | CurrentKey | OffsetKey | PendingKey | EndedKey


@dataclass(frozen=True, slots=True)
class AppliedReset:
    """The last reset of a group's offsets, for audit. `time_ms` since 1970."""

    reset_id: str
    reason: str
    time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """`epoch` counts changes of members, subscriptions, partitions; the target assignment was
    computed for `assignment_epoch`. `empty_since_ms` (since 1970): 0 while there are members.
    """

    epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    empty_since_ms: int = 0
    reset: AppliedReset | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord:
    """A member as it introduced itself, with the timeouts in force (ms)."""

    instance_id: str = ""
    client_id: str = ""
    client_host: str = ""
    rack: str = ""
    topics: tuple[str, ...] = ()
    pattern: str = ""
    assignor: str = ""
    session_timeout_ms: int = 0
    rebalance_timeout_ms: int = 0
    transactional_id: str = ""


@dataclass(frozen=True, slots=True)
class TargetRecord:
    """`names`: of every topic in `parts`."""

    parts: Parts = frozenset()
    names: Mapping[TopicId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentRecord:
    """`parts`: what the member may own; `pending`: what it has yet to give up; they are disjoint.

    `left`: a static member that left by itself; its partitions are kept for a session timeout.
    """

    epoch: int = 0
    parts: Parts = frozenset()
    pending: Parts = frozenset()
    names: Mapping[TopicId, str] = field(default_factory=dict)
    left: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRecord:
    """`leader_epoch` -1 = unknown; `time_ms` since 1970; `reset_id`, `reason`: set by a reset.

    `rewind_epoch`: 1, and one more whenever a reader has moved its position back and committed
    that. Commits of the same epoch never go back; those of an older one are refused (I18).
    """

    topic: str
    offset: int
    leader_epoch: int
    metadata: str
    time_ms: int
    reset_id: str = ""
    reason: str = ""
    rewind_epoch: int = 1


@dataclass(frozen=True, slots=True)
class PendingRecord:
    """Offsets that count once the transaction (producer id, `producer_epoch`) commits."""

    producer_epoch: int
    transactional_id: str
    offsets: Mapping[tuple[TopicId, int], OffsetRecord]


@dataclass(frozen=True, slots=True)
class EndedRecord:
    """The last transaction of a producer that ended here, with or without offsets of this group.

    `time_ms` since 1970.
    """

    producer_epoch: int
    committed: bool
    time_ms: int


Value = (
    GroupRecord
    | MemberRecord
    | TargetRecord
    | CurrentRecord
    | OffsetRecord
    | PendingRecord
    | EndedRecord
)


# ---------------------------------------------------------------- out


def encode_key(key: Key) -> bytes:
    """Equal keys are equal bytes, on which compaction relies."""
    match key:
        case GroupKey(group):
            parts: list[Any] = ["group", group]
        case MemberKey(group, member):
            parts = ["member", group, member]
        case TargetKey(group, member):
            parts = ["target", group, member]
        case CurrentKey(group, member):
            parts = ["current", group, member]
        case PendingKey(group, producer_id):
            parts = ["pending", group, producer_id]
        case EndedKey(group, producer_id):
            parts = ["ended", group, producer_id]
        case OffsetKey(group, topic_id, partition):
            # Written without the encoder, as offsets are: nearly all records are commits.
            text = f'[{VERSION},"offset",{quote(group)},{quote(topic_id)},{partition}]'
            return text.encode()
    return encode([VERSION, *parts]).encode()


def encode_value(value: Value) -> bytes:
    """`decode_value` of it, with the same kind of key, gives an equal object."""
    match value:
        case OffsetRecord():
            return _offset(value).encode()
        case GroupRecord():
            document = _group(value)
        case MemberRecord():
            document = {name: getattr(value, name) for name in MemberRecord.__slots__}
            document = {name: seen for name, seen in document.items() if seen}
        case TargetRecord():
            document = {"parts": _parts(value.parts, value.names)}
        case CurrentRecord():
            document = {
                "epoch": value.epoch,
                "parts": _parts(value.parts, value.names),
                "pending": _parts(value.pending, value.names),
                "left": value.left,
            }
        case PendingRecord():
            document = _pending(value)
        case EndedRecord():
            document = {
                "epoch": value.producer_epoch,
                "committed": value.committed,
                "time": value.time_ms,
            }
    return encode({"v": VERSION, **document}).encode()


def _offset(value: OffsetRecord) -> str:
    text = (
        f'{{"v":{VERSION},"topic":{quote(value.topic)},"offset":{value.offset},'
        f'"epoch":{value.leader_epoch},"time":{value.time_ms}'
    )
    for name in ("metadata", "reset_id", "reason"):
        if said := getattr(value, name):
            text += f',"{name}":{quote(said)}'
    if value.rewind_epoch > 1:
        text += f',"rewind_epoch":{value.rewind_epoch}'
    return text + "}"


def _pending(value: PendingRecord) -> dict[str, Any]:
    offsets = [
        [*part, record.topic, record.offset, record.leader_epoch, record.metadata, record.time_ms]
        for part, record in sorted(value.offsets.items())
    ]
    document = {"epoch": value.producer_epoch, "id": value.transactional_id, "offsets": offsets}
    # Beside the rows: former releases read rows of this length only.
    rewound = [
        [*part, record.rewind_epoch]
        for part, record in sorted(value.offsets.items())
        if record.rewind_epoch > 1
    ]
    return document | {"rewind_epochs": rewound} if rewound else document


def _group(value: GroupRecord) -> dict[str, Any]:
    document: dict[str, Any] = {
        "epoch": value.epoch,
        "assignment_epoch": value.assignment_epoch,
        "assignor": value.assignor,
        "empty_since": value.empty_since_ms,
    }
    if value.reset is not None:
        document["reset"] = [value.reset.reset_id, value.reset.reason, value.reset.time_ms]
    return document


def _parts(parts: Parts, names: Mapping[TopicId, str]) -> list[Any]:
    """[[topic id, name, [partitions]], …], sorted."""
    by_topic: dict[TopicId, list[int]] = {}
    for topic_id, partition in sorted(parts):
        by_topic.setdefault(topic_id, []).append(partition)
    return [[topic_id, names.get(topic_id, ""), found] for topic_id, found in by_topic.items()]


# ---------------------------------------------------------------- back


def decode_key(key: bytes | None) -> Key | None:
    """The key, None for one unknown to this version. Raises ClusterError(DATA_CORRUPTED)."""
    fields = _FORMAT.decode(key, list)
    version, kind, *rest = fields if len(fields) >= 2 else (None, None)
    if version != VERSION:
        return None
    try:
        match kind:
            case "group":
                (group,) = rest
                return GroupKey(as_text(group))
            case "member" | "target" | "current":
                group, member = rest
                return _MEMBER_KINDS[kind](as_text(group), as_text(member))
            case "offset":
                group, topic_id, partition = rest
                return OffsetKey(as_text(group), TopicId(as_text(topic_id)), int(partition))
            case "pending" | "ended":
                group, producer_id = rest
                return _PRODUCER_KINDS[kind](as_text(group), ProducerId(int(producer_id)))
    except (TypeError, ValueError) as error:
        raise _FORMAT.corrupt(key, error) from error
    return None


_MEMBER_KINDS: Final[dict[str, Callable[[str, str], Key]]] = {
    "member": MemberKey,
    "target": TargetKey,
    "current": CurrentKey,
}


_PRODUCER_KINDS: Final[dict[str, Callable[[str, ProducerId], Key]]] = {
    "pending": PendingKey,
    "ended": EndedKey,
}


def decode_value(key: Key, value: bytes) -> Value:
    """The value of a known key. Raises ClusterError(DATA_CORRUPTED)."""
    document = _FORMAT.decode(value, dict)
    try:
        match key:
            case GroupKey():
                return _read_group(document)
            case MemberKey():
                found = {
                    name: document[name] for name in MemberRecord.__slots__ if name in document
                }
                found["topics"] = tuple(found.get("topics", ()))
                return MemberRecord(**found)
            case TargetKey():
                return TargetRecord(*_read_parts(document["parts"]))
            case CurrentKey():
                parts, names = _read_parts(document["parts"])
                pending, more = _read_parts(document["pending"])
                return CurrentRecord(
                    epoch=int(document["epoch"]),
                    parts=parts,
                    pending=pending,
                    names={**names, **more},
                    left=document["left"],
                )
            case OffsetKey():
                return OffsetRecord(
                    topic=document["topic"],
                    offset=int(document["offset"]),
                    leader_epoch=int(document["epoch"]),
                    metadata=document.get("metadata", ""),
                    time_ms=int(document["time"]),
                    reset_id=document.get("reset_id", ""),
                    reason=document.get("reason", ""),
                    rewind_epoch=int(document.get("rewind_epoch", 1)),
                )
            case PendingKey():
                return _read_pending(document)
            case EndedKey():
                return EndedRecord(
                    int(document["epoch"]), bool(document["committed"]), int(document["time"])
                )
    except (KeyError, TypeError, ValueError) as error:
        raise _FORMAT.corrupt(value, error) from error


def _read_group(document: dict[str, Any]) -> GroupRecord:
    reset = document.get("reset")
    return GroupRecord(
        epoch=int(document["epoch"]),
        assignment_epoch=int(document["assignment_epoch"]),
        assignor=document["assignor"],
        empty_since_ms=int(document["empty_since"]),
        reset=None if reset is None else AppliedReset(*reset),
    )


def _read_pending(document: dict[str, Any]) -> PendingRecord:
    epochs = {
        (topic_id, partition): int(epoch)
        for topic_id, partition, epoch in document.get("rewind_epochs", ())
    }
    offsets = {
        (TopicId(topic_id), int(partition)): OffsetRecord(
            topic=topic,
            offset=int(offset),
            leader_epoch=int(leader_epoch),
            metadata=metadata,
            time_ms=int(time_ms),
            rewind_epoch=epochs.get((topic_id, partition), 1),
        )
        for topic_id, partition, topic, offset, leader_epoch, metadata, time_ms in document[
            "offsets"
        ]
    }
    return PendingRecord(int(document["epoch"]), document["id"], offsets)


def _read_parts(found: list[Any]) -> tuple[Parts, dict[TopicId, str]]:
    parts = frozenset(
        (TopicId(topic_id), int(partition))
        for topic_id, _, partitions in found
        for partition in partitions
    )
    return parts, {TopicId(topic_id): name for topic_id, name, _ in found}
