"""Records from Kafka as rows, and rows on their way to Kafka: what `kafka` hands out."""

from collections.abc import Mapping
from typing import Any, Final

import confluent_kafka as kafka

from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode, MisuseError
from penstock.migration.kafka_answers import PASSING, failed
from penstock.migration.model import Rows

POLL_RECORDS: Final = 10_000


class KafkaReader:
    """A `Reader` of committed records, by a consumer that is assigned, not subscribed."""

    def __init__(self, name: str, consumer: Any, starts: Mapping[TopicPartition, int]) -> None:
        self._name = name
        self._consumer = consumer
        self._at_end: set[TopicPartition] = set()
        consumer.assign(
            [kafka.TopicPartition(w.topic, w.partition, at) for w, at in starts.items()]
        )

    def poll(self, timeout_s: float) -> list[tuple[TopicPartition, Rows]]:
        records: dict[tuple[str, int], list[Any]] = {}
        ends: list[Any] = []
        for message in self._consumer.consume(POLL_RECORDS, timeout_s):
            error = message.error()
            if error is None:
                records.setdefault((message.topic(), message.partition()), []).append(message)
            elif error.code() == kafka.KafkaError._PARTITION_EOF:  # noqa: SLF001
                ends.append(message)
            elif not error.retriable() and error.code() not in PASSING:
                raise failed(self._name, error)
        found = {TopicPartition(*place): _rows(batch) for place, batch in records.items()}
        self._at_end -= found.keys()
        for message in ends:
            where = TopicPartition(message.topic(), message.partition())
            rows = found.setdefault(where, Rows(message.offset()))
            if message.offset() >= rows.next_offset:  # else records have come behind it
                rows.next_offset = message.offset()
                self._at_end.add(where)
        return list(found.items())

    def at_end(self, where: TopicPartition) -> bool:
        return where in self._at_end

    def close(self) -> None:
        self._consumer.close()


def _rows(batch: list[Any]) -> Rows:
    """Of one partition. The loops are C's: each call costs a third of what it does in Python's."""
    of: Any = kafka.Message
    offsets = list(map(of.offset, batch))
    return Rows(
        offsets[-1] + 1,
        offsets,
        list(map(of.key, batch)),
        list(map(of.value, batch)),
        [at_ms for _, at_ms in map(of.timestamp, batch)],
        list(map(of.headers, batch)),
    )


class KafkaAppending:
    """An `Appending`: rows that librdkafka sends; the offsets come by its callbacks, in order."""

    def __init__(self, name: str, producer: Any, where: TopicPartition, rows: Rows) -> None:
        self._name = name
        self._producer = producer
        self._left = len(rows)
        self._base = -1
        self._expected = -1
        self._failure: Exception | None = None
        for key, value, timestamp_ms, headers in zip(
            rows.keys, rows.values, rows.timestamps_ms, rows.headers, strict=True
        ):
            if timestamp_ms <= 0:
                raise MisuseError(f"{where} has a record with timestamp {timestamp_ms}")
            self._produce(where, key, value, timestamp_ms, headers)

    def _produce(
        self, where: TopicPartition, key: Any, value: Any, at_ms: int, headers: Any
    ) -> None:
        while True:
            try:
                self._producer.produce(
                    where.topic, value, key,
                    partition=where.partition, timestamp=at_ms, headers=list(headers or ()),
                    on_delivery=self._delivered,
                )  # fmt: skip
            except BufferError:
                self._producer.poll(0.1)
            except kafka.KafkaException as error:
                raise failed(self._name, error.args[0]) from None
            else:
                return

    def _delivered(self, error: Any, message: Any) -> None:
        self._left -= 1
        if error is not None:
            self._failure = self._failure or failed(self._name, error)
            return
        if self._base < 0:
            self._base = self._expected = message.offset()
        if message.offset() != self._expected:
            self._failure = self._failure or ClusterError(
                f"{self._name}: {message.topic()}/{message.partition()}: a record got offset "
                f"{message.offset()}, and {self._expected} was expected: others write there too",
                ErrorCode.INVALID_REQUEST,
            )
        self._expected += 1

    def done(self) -> bool:
        self._producer.poll(0)
        return self._left == 0

    def base_offset(self) -> int:
        while self._left:
            self._producer.poll(0.1)
        if self._failure is not None:
            raise self._failure
        return self._base
