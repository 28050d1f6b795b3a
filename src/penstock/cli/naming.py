"""Partitions as users write them: `flights/3`."""

from penstock.core.types import TopicPartition
from penstock.errors import ErrorCode, MisuseError


def parse_partition(text: str) -> TopicPartition:
    """`TOPIC/PARTITION`. Raises MisuseError."""
    topic, slash, number = text.rpartition("/")
    if not slash or not topic or not (number.isascii() and number.isdigit()):
        raise MisuseError(
            f"{text!r} must be TOPIC/PARTITION, as flights/3", ErrorCode.INVALID_REQUEST
        )
    return TopicPartition(topic, int(number))


def parse_topic_or_partition(text: str) -> tuple[str, int | None]:
    """`TOPIC`, or `TOPIC/PARTITION`. Raises MisuseError."""
    if "/" not in text:
        return text, None
    where = parse_partition(text)
    return where.topic, where.partition
