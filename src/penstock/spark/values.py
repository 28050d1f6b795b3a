"""The values of options: text in, a checked value out.

Every parser raises ValueError with what was expected ("true or false"); the caller
(`options`) adds the option's name and the value seen, and makes it one MisuseError.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from penstock.core.limits import GROUP_ID_MAX_CHARS
from penstock.core.types import TopicPartition
from penstock.spark.boundary import (
    EARLIEST_OFFSET,
    MAX_INT64,
    AtEdge,
    AtOffsets,
    Boundary,
    Edge,
    Otherwise,
)

INT32_MAX: Final = 2**31 - 1
COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS: Final = "headers"


def duration_ms(text: str) -> int:
    """Spark's time strings: 500ms, 30s, 15m, 1h, 2d; without a unit milliseconds."""
    factors = {
        "ms": 1,
        "": 1,
        "s": 1000,
        "m": 60_000,
        "min": 60_000,
        "h": 3_600_000,
        "d": 86_400_000,
    }
    return _with_unit(text, factors, "a time such as 500ms, 30s or 15m")


def size_bytes(text: str) -> int:
    """Spark's size strings: 1048576, 64k, 16m, 1g; powers of 1024. At least 1."""
    units = {unit: 1024**power for power, unit in enumerate(("b", "k", "m", "g", "t"))}
    factors = {"": 1} | units | {f"{u}b": factor for u, factor in units.items() if u != "b"}
    size = _with_unit(text, factors, "a size such as 64m or 1g")
    if size < 1:
        raise ValueError("a size of at least one byte")
    return size


def _with_unit(text: str, factors: Mapping[str, int], expected: str) -> int:
    match = re.fullmatch(r"([0-9]{1,18})\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in factors:
        raise ValueError(expected)
    return int(match[1]) * factors[match[2]]


def nonempty(text: str) -> str:
    if not text.strip():
        raise ValueError("a non-empty string")
    return text.strip()


def group_id(text: str) -> str:
    """What `penstock.core.groups.config.check_group_id` accepts, except blanks only."""
    if not text.strip() or not text.isprintable() or len(text) > GROUP_ID_MAX_CHARS:
        raise ValueError(f"printable text of 1 to {GROUP_ID_MAX_CHARS} characters")
    return text


def boolean(text: str) -> bool:
    match text.strip().lower():
        case "true":
            return True
        case "false":
            return False
    raise ValueError("true or false")


def not_negative(text: str) -> int:
    stripped = text.strip()
    if not (stripped.isascii() and stripped.isdecimal()) or int(stripped) > MAX_INT64:
        raise ValueError("a whole number from 0 to 2**63 - 1")
    return int(stripped)


def positive(text: str) -> int:
    try:
        number = not_negative(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ValueError("a whole number of at least 1")
    return number


def timeout_ms(text: str) -> int:
    return _int32(text, 1)


def int32(text: str) -> int:
    return _int32(text, 0)


def _int32(text: str, least: int) -> int:
    """What requests carry and clocks can wait for: in ms, 24 days."""
    try:
        number = not_negative(text)
    except ValueError:
        number = -1
    if not least <= number <= INT32_MAX:
        raise ValueError(f"a whole number from {least} to {INT32_MAX}")
    return number


def fetch_bytes(text: str) -> int:
    size = size_bytes(text)
    if not 1024 <= size <= 64 << 20:
        raise ValueError("1k to 64m")
    return size


def otherwise(text: str) -> Otherwise:
    try:
        return Otherwise(text.strip().lower())
    except ValueError:
        raise ValueError("error or latest") from None


def addresses(text: str) -> tuple[str, ...]:
    addresses = tuple(part.strip() for part in text.split(",") if part.strip())
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65536:
            raise ValueError("host:port, several separated by commas")
    if not addresses:
        raise ValueError("host:port, several separated by commas")
    return addresses


def topic_names(text: str) -> tuple[str, ...]:
    topics = tuple(sorted({part.strip() for part in text.split(",") if part.strip()}))
    if not topics:
        raise ValueError("topic names separated by commas")
    return topics


def topic_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as problem:
        raise ValueError(f"a Python regular expression ({problem})") from None
    if not text:
        raise ValueError("a regular expression that matches whole topic names")
    return text


def column_names(text: str) -> tuple[str, ...]:
    known = {name.lower(): name for name in (*COLUMNS, HEADERS)}
    names = [part.strip().lower() for part in text.split(",")]
    if len(set(names)) != len(names) or not set(names) <= known.keys():
        raise ValueError(f"distinct names out of {', '.join(known.values())}, separated by commas")
    return tuple(known[name] for name in names)


def _json_object(text: str, expected: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        raise ValueError(expected) from None
    if not isinstance(value, dict) or not value:
        raise ValueError(expected)
    return value


def assignment(text: str) -> tuple[TopicPartition, ...]:
    expected = 'JSON such as {"orders": [0, 1]}'
    found = []
    for topic, partitions in _json_object(text, expected).items():
        if not isinstance(partitions, list) or not partitions:
            raise ValueError(expected)
        for partition in partitions:
            if type(partition) is not int or not 0 <= partition < 2**31:
                raise ValueError(expected)
            found.append(TopicPartition(topic, partition))
    return tuple(sorted(set(found)))


def _per_partition(text: str, least: int, expected: str) -> dict[TopicPartition, int]:
    found = {}
    for topic, partitions in _json_object(text, expected).items():
        if not isinstance(partitions, dict) or not partitions:
            raise ValueError(expected)
        for partition, number in partitions.items():
            if not (partition.isascii() and partition.isdecimal()):
                raise ValueError(expected)
            if type(number) is not int or not least <= number <= MAX_INT64:
                raise ValueError(expected)
            found[TopicPartition(topic, int(partition))] = number
    return found


def timestamps_ms(text: str) -> dict[TopicPartition, int]:
    return _per_partition(text, 0, 'JSON with ms since 1970 UTC, {"orders": {"0": 1700000000000}}')


def edge_or_offsets(text: str) -> Boundary:
    if text.strip().lower() in set(Edge):
        return AtEdge(Edge(text.strip().lower()))
    expected = (
        'earliest, latest, or JSON such as {"orders": {"0": 23, "1": -2}} '
        "(-1 = latest, -2 = earliest)"
    )
    return AtOffsets(_per_partition(text, EARLIEST_OFFSET, expected))
