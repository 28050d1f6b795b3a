"""What a cluster answered: the value, or the reason why there is none. Pure data.

One question that fails must not hide what the others brought: every part of a page says for itself
what it could not read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from penstock.core.types import TopicPartition

if TYPE_CHECKING:
    from penstock.client import LogDescription

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Answer(Generic[A]):
    """`problem` "" = `value` is there. `refused`: the cluster answers, but not to this user.

    `asked_ms`: when it was asked, in milliseconds since 1970; None = it did not have to be.
    """

    value: A | None = None
    problem: str = ""
    refused: bool = False
    asked_ms: int | None = field(default=None, compare=False)


NOT_KNOWN: Final = "Not known: nobody answered that."


def empty_text(answer: Answer[Any], text: str) -> str:
    """Below a table without rows: `text` only of what was answered."""
    return NOT_KNOWN if answer.value is None else text


@dataclass(frozen=True, slots=True)
class Logs:
    """What the live brokers store, those that answered; `silent`: why others did not, by id.

    `at_s`: seconds of a monotonic clock.
    """

    at_s: float
    brokers: "Mapping[int, LogDescription]" = field(default_factory=dict)
    silent: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicTraffic:
    """Of one topic, by its leaders' logs. Rates are per second; None = not known yet."""

    records: int
    size_bytes: int
    records_rate: float | None
    unseen: bool = False
    """A broker that may lead some of it did not answer."""


def traffic(now: Logs, before: Logs | None) -> dict[str, TopicTraffic]:
    """By topic: offsets between log start and high watermark, bytes, and what was added since."""
    ends: dict[tuple[str, str, int], int] = {}
    if before is not None:
        for log in (one for broker in before.brokers.values() for one in broker.logs):
            where = (log.topic, log.topic_id, log.partition)
            ends[where] = max(ends.get(where, 0), log.high_watermark)
    elapsed_s = 0.0 if before is None else now.at_s - before.at_s
    found: dict[str, TopicTraffic] = {}
    for log in (one for broker in now.brokers.values() for one in broker.logs if one.is_leader):
        known = found.get(log.topic, TopicTraffic(0, 0, None))
        added, end = known.records_rate, ends.get((log.topic, log.topic_id, log.partition))
        if elapsed_s > 0 and end is not None:
            added = (added or 0.0) + max(0, log.high_watermark - end) / elapsed_s
        found[log.topic] = TopicTraffic(
            known.records + log.high_watermark - log.log_start_offset,
            known.size_bytes + log.size_bytes,
            added,
            bool(now.silent),
        )
    return found


def partition_sizes(logs: Logs, topic: str) -> dict[TopicPartition, int]:
    """Bytes of the leader's log of each partition."""
    return {
        TopicPartition(topic, log.partition): log.size_bytes
        for broker in logs.brokers.values()
        for log in broker.logs
        if log.topic == topic and log.is_leader
    }
