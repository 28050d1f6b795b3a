"""The options of a writer: every one named, parsed, checked and explained here.

As `options` for readers: strings in, one frozen `SinkOptions` or one MisuseError out.

    option                             default
    topic                              the column topic; the option wins
    delivery †                         at-least-once
    penstock.compression.type          none; or zstd, lz4
    penstock.delivery.timeout.ms       120000; a record that is not stored by then fails its task
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from penstock.core.topic import is_internal, validate_topic_name
from penstock.errors import MisuseError, PenstockError
from penstock.spark import values
from penstock.spark.given import (
    COMMON_SETTINGS,
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    ClientSettings,
    Given,
    client_settings,
)

SINK_SETTINGS: Final = (
    *COMMON_SETTINGS,
    "penstock.compression.type",
    "penstock.delivery.timeout.ms",
)
SPARKS_OWN: Final = ("checkpointLocation", "queryName")
"""Options of the query that Spark hands on to a stream's sink."""
CODECS: Final = ("none", "zstd", "lz4")
REFUSED: Final = {
    "penstock.acks": "a sink waits for all in-sync replicas",
    "penstock.enable.idempotence": "a sink always is",
    "penstock.key.serializer": "cast the column to string or binary in the query",
    "penstock.value.serializer": "cast the column to string or binary in the query",
    "penstock.transactional.id": "a sink finds its own",
    "path": "name the topic by the option topic or a column topic; save() and start() take no path",
}
_READING: Final = dict.fromkeys(
    SOURCE_OPTIONS, "belongs to reading; a writer takes topic, or a column topic"
)


class Delivery(StrEnum):
    """What a reader of the topic may see of rows that Spark computed more than once."""

    AT_LEAST_ONCE = "at-least-once"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """All a writer needs to know. `topic` None: every row names its own."""

    client: ClientSettings
    topic: str | None = None
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    codec: str = "none"
    delivery_timeout_ms: int = 120_000


def parse_sink(raw: Mapping[str, str]) -> SinkOptions:
    """Reads all options of a writer; raises MisuseError for the first that is wrong."""
    read = Given(raw)
    read.check_known((*SINK_OPTIONS, *SINK_SETTINGS, *SPARKS_OWN), REFUSED, _READING)
    return SinkOptions(
        client=client_settings(read),
        topic=read.get("topic", _topic, None),
        delivery=read.get("delivery", _delivery, Delivery.AT_LEAST_ONCE),
        codec=read.get("penstock.compression.type", _codec, "none"),
        delivery_timeout_ms=read.get("penstock.delivery.timeout.ms", values.positive, 120_000),
    )


def _topic(text: str) -> str:
    try:
        validate_topic_name(text)
    except PenstockError as problem:
        raise MisuseError(f"option topic: {problem}") from None
    if is_internal(text):
        raise MisuseError(f"option topic is {text!r}: the cluster's own topics cannot be written")
    return text


def _delivery(text: str) -> Delivery:
    try:
        return Delivery(text.strip().lower())
    except ValueError:
        raise ValueError(" or ".join(Delivery)) from None


def _codec(text: str) -> str:
    if text.strip().lower() not in CODECS:
        raise ValueError(", ".join(CODECS[:-1]) + f" or {CODECS[-1]}")
    return text.strip().lower()
