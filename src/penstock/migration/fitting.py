"""Records that the target cannot take: found before anything is written, and named.

A topic's limits say little about its records: Kafka's counts compressed batches, and whoever lowers
it leaves larger records behind. So every record that would be copied is read once before
(`--no-scan` leaves that out). One that comes later, with `--follow`, ends the copy where it is.

    rows ──Target.misfits──▶ Misfit each ──▶ the plan of the topic is refused, with the largest
"""

from collections.abc import Callable, Mapping, Sequence
from time import time_ns
from typing import Final

from penstock.client.producer.accumulator import BATCH_OVERHEAD_BYTES
from penstock.core.columns import Header
from penstock.core.limits import INT64_MAX
from penstock.core.records import encode_columns
from penstock.core.records_wire import message_bytes
from penstock.core.topic import CONFIG_KEYS
from penstock.core.types import TopicPartition
from penstock.migration.model import Misfit, Rows, Source, Target, Topic
from penstock.migration.reading import up_to

_MAX_MESSAGE: Final = "max.message.bytes"
_LIMIT_MAX: Final = next(key.maximum for key in CONFIG_KEYS if key.name == _MAX_MESSAGE)
_BEFORE: Final = "message.timestamp.before.max.ms"
_AFTER: Final = "message.timestamp.after.max.ms"
_DAY_MS: Final = 86_400_000
"""For the time that the copy takes."""
_FRAMING_BYTES: Final = 512
_HEADER_BYTES: Final = 16
"""More than either end adds to a record, and to a header."""
_KAFKA_BATCH_BYTES: Final = 61
"""Header of a batch of Kafka (DefaultRecordBatch.RECORD_BATCH_OVERHEAD)."""
_KAFKA_RECORD_BYTES: Final = 3
"""Attributes, and the deltas of time and offset in a batch of one record."""

Measure = Callable[[bytes | None, bytes | None, Sequence[Header]], int]
"""What a topic's limit must be at least for a record with this key, value and these headers."""


def own_limit(key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> int:
    """The smallest max.message.bytes with which our producer sends such a record."""
    columns = encode_columns([value], [key], timestamps_ms=0, headers=[headers or None])
    return message_bytes(columns) + BATCH_OVERHEAD_BYTES


def kafka_limit(key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> int:
    """The smallest max.message.bytes with which Kafka takes such a record, uncompressed."""
    body = _KAFKA_RECORD_BYTES + _kafka_bytes(key) + _kafka_bytes(value)
    body += _varint_bytes(len(headers))
    body += sum(_kafka_bytes(name.encode()) + _kafka_bytes(entry) for name, entry in headers)
    return _KAFKA_BATCH_BYTES + _varint_bytes(body) + body


def misfits_of(rows: Rows, topic: Topic, measure: Measure) -> list[Misfit]:
    """Those of the rows that a topic with these settings does not take."""
    found = _outside_times(rows, topic)
    if "compact" in topic.in_force("cleanup.policy", "delete"):
        why = "it has no key, and the target's topic is compacted: leave the topic out"
        found += [Misfit(index, why) for index, key in enumerate(rows.keys) if key is None]
    return found + too_large(rows, topic.max_message_bytes, measure)


def _outside_times(rows: Rows, topic: Topic) -> list[Misfit]:
    now_ms = time_ns() // 1_000_000
    found = []
    for name, sign in ((_BEFORE, -1), (_AFTER, 1)):
        limit_ms = int(topic.in_force(name, str(INT64_MAX)))
        found += [
            Misfit(
                index,
                f"its timestamp is {at_ms}, and {name} of the target's topic is {limit_ms}; set "
                f"that to {sign * (at_ms - now_ms) + _DAY_MS} or more",
            )
            for index, at_ms in enumerate(rows.timestamps_ms)
            if sign * (at_ms - now_ms) > limit_ms
        ]
    return found


def too_large(rows: Rows, limit_bytes: int, measure: Measure) -> list[Misfit]:
    """Those of the rows that do not fit a topic with this limit."""
    found: list[Misfit] = []
    longest = sum(max(map(len, filter(None, c)), default=0) for c in (rows.keys, rows.values))
    if longest + _FRAMING_BYTES <= limit_bytes and not any(rows.headers):
        return found
    columns = (rows.keys, rows.values, rows.headers)
    for index, (key, value, headers) in enumerate(zip(*columns, strict=True)):
        if _at_most(key, value, headers or ()) <= limit_bytes:
            continue
        needs = measure(key, value, headers or ())
        if needs > limit_bytes:
            found.append(Misfit(index, _too_large(needs, limit_bytes), needs))
    return found


def _too_large(needs: int, limit_bytes: int) -> str:
    text = f"it needs {needs} bytes, and {_MAX_MESSAGE} of the target's topic is {limit_bytes}; "
    if needs > _LIMIT_MAX:
        return text + f"{_LIMIT_MAX} is the most there can be, so leave the topic out"
    return text + f"set that to {needs} or more"


def unfit(
    source: Source,
    target: Target,
    starts: Mapping[TopicPartition, int],
    topics: Mapping[str, Topic],
    tick: Callable[[int], None],
) -> dict[str, str]:
    """Why a topic cannot be copied from `starts` to its end; topics that can are left out.

    `topics`: by name, as the target has them or will have them."""
    ends = {where: bounds.end for where, bounds in source.bounds(starts).items()}
    counts: dict[str, int] = {}
    worst: dict[str, tuple[Misfit, str]] = {}
    waited = {where: end for where, end in ends.items() if starts[where] < end}
    if not waited:
        return {}
    reader = source.read({where: starts[where] for where in waited})
    for where, rows in up_to(reader, waited):
        for misfit in target.misfits(rows, topics[where.topic]):
            counts[where.topic] = counts.get(where.topic, 0) + 1
            known = worst.get(where.topic)
            if known is None or misfit.needs_bytes > known[0].needs_bytes:
                worst[where.topic] = misfit, place_of(where, rows, misfit)
        tick(len(rows))
    return {
        topic: f"{place}: {misfit.why}{_more(counts[topic])}"
        for topic, (misfit, place) in worst.items()
    }


def place_of(where: TopicPartition, rows: Rows, misfit: Misfit) -> str:
    return f"record {where.topic}/{where.partition}, offset {rows.offsets[misfit.index]}"


def _at_most(key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> int:
    size = _FRAMING_BYTES + len(key or b"") + len(value or b"")
    for name, entry in headers:
        size += _HEADER_BYTES + 4 * len(name) + len(entry or b"")
    return size


def _more(count: int) -> str:
    return f" ({count} records do not fit; this is the largest)" if count > 1 else ""


def _kafka_bytes(data: bytes | None) -> int:
    return 1 if data is None else _varint_bytes(len(data)) + len(data)


def _varint_bytes(number: int) -> int:
    """Of a length, zigzag-encoded."""
    return max(1, ((number << 1).bit_length() + 6) // 7)
