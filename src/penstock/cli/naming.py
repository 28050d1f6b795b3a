"""Partitions as users write them: `flights/3`."""

from penstock.cli.usage import WrongUsageError
from penstock.core.types import TopicPartition


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
