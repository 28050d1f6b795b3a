"""The options of a writer: every one named, parsed, checked and explained here.

As `options` for readers: strings in, one frozen `SinkOptions` or one MisuseError out.

    option                             default
    topic                              the column topic; the option wins
    delivery †                         at-least-once; exactly-once with a txnAppId
    txnAppId                           streams: spark/<query id>; jobs: one of their own
    txnVersion                         jobs: the number of this write under the txnAppId
    transactionTimeout †               15m; at most the cluster's transaction.max.timeout.ms
    onReplayMismatch †                 error; or skip
    penstock.compression.type          none; or zstd, lz4
    penstock.delivery.timeout.ms       120000; a record that is not stored by then fails its task
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from penstock.core.limits import TRANSACTIONAL_ID_MAX_BYTES
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
"""Options of the query that Spark passes to a stream's sink."""
CODECS: Final = ("none", "zstd", "lz4")
REFUSED: Final = {
    "penstock.acks": "a sink waits for all in-sync replicas",
    "penstock.enable.idempotence": "a sink always is",
    "penstock.key.serializer": "cast the column to string or binary in the query",
    "penstock.value.serializer": "cast the column to string or binary in the query",
    "penstock.transactional.id": "a sink finds its own",
    "penstock.transaction.timeout.ms": "use transactionTimeout",
    "path": (
        "name the topic with the option topic or a column topic; save() and start() take no path"
    ),
}
_READING: Final = dict.fromkeys(
    SOURCE_OPTIONS, "belongs to reading; a writer takes topic, or a column topic"
)


_EXACTLY_ONCE: Final = ("txnAppId", "txnVersion", "transactionTimeout", "onReplayMismatch")


class Delivery(StrEnum):
    """How often readers of the topic may see rows that Spark computed more than once."""

    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"


class OnReplayMismatch(StrEnum):
    """What to do about a committed batch that is replayed with a different number of rows."""

    ERROR = "error"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Everything a writer needs to know. `topic` None: every row names its own. Times in ms.

    `app_id` None: the stream's or the job's own. `version` None: of a stream, which counts its
    batches, or of a job without `app_id`. `checkpoint`: the location of a stream's; "" = unknown.
    """

    client: ClientSettings
    topic: str | None = None
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    codec: str = "none"
    delivery_timeout_ms: int = 120_000
    app_id: str | None = None
    version: int | None = None
    transaction_timeout_ms: int = 900_000
    on_replay_mismatch: OnReplayMismatch = OnReplayMismatch.ERROR
    checkpoint: str = ""


def parse_sink(raw: Mapping[str, str], *, streaming: bool = False) -> SinkOptions:
    """Reads all options of a writer; raises MisuseError for the first that is wrong."""
    read = Given(raw)
    read.check_known((*SINK_OPTIONS, *SINK_SETTINGS, *SPARKS_OWN), REFUSED, _READING)
    delivery = _checked_delivery(read, streaming)
    return SinkOptions(
        client=client_settings(read),
        topic=read.get("topic", _topic, None),
        delivery=delivery,
        codec=read.get("penstock.compression.type", _codec, "none"),
        delivery_timeout_ms=read.get("penstock.delivery.timeout.ms", values.timeout_ms, 120_000),
        app_id=read.get("txnAppId", _app_id, None),
        version=read.get("txnVersion", values.not_negative, None),
        transaction_timeout_ms=read.get("transactionTimeout", _timeout_ms, 900_000),
        on_replay_mismatch=read.get("onReplayMismatch", _on_mismatch, OnReplayMismatch.ERROR),
        checkpoint=read.get("checkpointLocation", str, ""),
    )


def _checked_delivery(read: Given, streaming: bool) -> Delivery:
    """A txnAppId implies exactly-once delivery; options that have no meaning without it are
    refused."""
    named = read.has("txnAppId")
    default = Delivery.EXACTLY_ONCE if named else Delivery.AT_LEAST_ONCE
    delivery = read.get("delivery", _delivery, default)
    if delivery is Delivery.AT_LEAST_ONCE:
        for option in _EXACTLY_ONCE:
            if read.has(option):
                raise MisuseError(
                    f"option {option} needs delivery=exactly-once: at-least-once delivery has no "
                    "transactions"
                )
    if streaming and read.has("txnVersion"):
        raise MisuseError("option txnVersion is for df.write: a stream numbers its batches itself")
    if not streaming and named != read.has("txnVersion"):
        raise MisuseError(
            "options txnAppId and txnVersion go together: the first names a series of writes, the "
            "second counts them, as .option('txnAppId', 'paid').option('txnVersion', batch_id)"
        )
    return delivery


def _topic(text: str) -> str:
    try:
        validate_topic_name(text)
    except PenstockError as problem:
        raise MisuseError(f"option topic: {problem}") from None
    if is_internal(text):
        raise MisuseError(f"option topic is {text!r}: internal topics cannot be written")
    return text


def _delivery(text: str) -> Delivery:
    try:
        return Delivery(text.strip().lower())
    except ValueError:
        raise ValueError(" or ".join(Delivery)) from None


def _on_mismatch(text: str) -> OnReplayMismatch:
    try:
        return OnReplayMismatch(text.strip().lower())
    except ValueError:
        raise ValueError(" or ".join(OnReplayMismatch)) from None


def _app_id(text: str) -> str:
    name = text.strip()
    if not name.isprintable() or not 1 <= len(name.encode()) <= TRANSACTIONAL_ID_MAX_BYTES:
        raise ValueError(f"printable text of 1 to {TRANSACTIONAL_ID_MAX_BYTES} bytes")
    return name


def _timeout_ms(text: str) -> int:
    limit = values.duration_ms(text)
    if not 1 <= limit <= values.INT32_MAX:
        raise ValueError(f"a time of 1ms to {values.INT32_MAX}ms")
    return limit


def _codec(text: str) -> str:
    if text.strip().lower() not in CODECS:
        raise ValueError(", ".join(CODECS[:-1]) + f" or {CODECS[-1]}")
    return text.strip().lower()
