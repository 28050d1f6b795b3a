"""Partitions as users write them: `flights/3`."""

from typing import TYPE_CHECKING

from penstock.cli.usage import WrongUsageError
from penstock.core.types import TopicPartition
from penstock.errors import ErrorCode, MisuseError

if TYPE_CHECKING:
    from penstock.client import TopicDescription


def parse_partition(text: str) -> TopicPartition:
    """`TOPIC/PARTITION`. Raises WrongUsageError."""
    topic, slash, number = text.rpartition("/")
    if not (slash and topic and number.isascii() and number.isdigit() and len(number) < 10):
        raise WrongUsageError(f"{text!r} must be TOPIC/PARTITION, as flights/3")
    return TopicPartition(topic, int(number))


def parse_topic_or_partition(text: str) -> tuple[str, int | None]:
    """`TOPIC`, or `TOPIC/PARTITION`. Raises WrongUsageError."""
    topic, slash, _ = text.partition("/")
    if topic and not slash:
        return topic, None
    try:
        where = parse_partition(text)
    except WrongUsageError:
        raise WrongUsageError(f"{text!r} must be TOPIC or TOPIC/PARTITION, as flights/3") from None
    return where.topic, where.partition


def check_partition(topic: "TopicDescription", partition: int) -> None:
    """Raises MisuseError for one that the topic does not have."""
    if partition >= len(topic.partitions):
        raise MisuseError(
            f"topic {topic.topic} has partitions 0 to {len(topic.partitions) - 1}, not {partition}",
            ErrorCode.UNKNOWN_PARTITION,
        )
