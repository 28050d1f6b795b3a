"""Producers that write in transactions, for the recorded workload.

    begin ─▶ a few batches of a few keys ─▶ commit, or abort now and then ─▶ the outcome

Transaction numbers are unique across producers. If an outcome is unknown, the producer asks again
until it is known or the workload ends; then it stays unknown. A failed transaction was never
committed, so its records must never be visible, whatever the outcome of its abort.
"""

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from penstock.client import ColumnsDelivery, Consumer, Producer, Transaction, TransactionError
from penstock.client.config import ClientOptions
from penstock.core.types import TopicPartition
from penstock.errors import ErrorCode, MisuseError, PenstockError
from penstock.verify.history import HistoryWriter
from penstock.verify.records import build_values

ABORT_SHARE: Final = 0.2
BATCHES_MAX: Final = 4
PAUSE_S: Final = 0.1
TIMEOUT_MS: Final = 10_000
_NUMBERS: Final = 1 << 40


Sent = tuple[tuple[int, int], ColumnsDelivery]
"""((stream, first sequence), …)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionalConfig:
    """As `WorkloadConfig`; `tag` is the run's, `pause_s` is the time between the begins of two."""

    bootstrap: str
    topic: str
    partitions: int
    tag: int
    batch_records: int
    record_bytes: int
    pause_s: float
    delivery_timeout_ms: int
    options: ClientOptions = field(default_factory=ClientOptions)


class TransactionalProducer:
    """One thread's producer. `run` until `stopping` is set."""

    def __init__(
        self,
        config: TransactionalConfig,
        index: int,
        keys: Mapping[int, bytes],
        history: HistoryWriter,
        now_ms: Callable[[], float],
    ) -> None:
        """`keys`: of each stream of this producer."""
        self._config = config
        self._index = index
        self._keys = keys
        self._history = history
        self._now_ms = now_ms
        self._sequences = dict.fromkeys(keys, 0)
        self._number = index * _NUMBERS
        self._random = random.Random(config.tag ^ index)  # noqa: S311 - a workload

    def run(self, stopping: threading.Event, acknowledged: Callable[[int], None]) -> None:
        """Raises MisuseError for the workload's own mistakes."""
        config = self._config
        while not stopping.is_set():
            with Producer(
                config.bootstrap,
                transactional_id=f"verify-{config.tag:x}-{self._index}",
                transaction_timeout_ms=TIMEOUT_MS,
                delivery_timeout_ms=config.delivery_timeout_ms,
                **config.options,
            ) as producer:
                while not stopping.is_set() and self._one(producer, stopping, acknowledged):
                    stopping.wait(config.pause_s)

    def _one(
        self, producer: Producer, stopping: threading.Event, acknowledged: Callable[[int], None]
    ) -> bool:
        """One transaction; False if the producer is no longer usable."""
        transaction = producer.transaction()
        try:
            transaction.begin()
        except MisuseError:
            raise
        except PenstockError as error:
            stopping.wait(PAUSE_S)
            return error.code is not ErrorCode.PRODUCER_FENCED
        self._number += 1
        abort = self._random.random() < ABORT_SHARE
        try:
            sent = self._fill(transaction)
            if abort:
                transaction.abort()
            else:
                self._commit(transaction, stopping)
                for (stream, first), delivery in sent:
                    self._acknowledge(stream, first, delivery, acknowledged)
            self._ended("aborted" if abort else "committed")
        except MisuseError:
            raise
        except PenstockError as error:
            unknown = isinstance(error, TransactionError) and error.unknown_outcome
            self._ended("unknown" if unknown else "aborted")
            return self._give_up(transaction, error)
        return True

    def _fill(self, transaction: Transaction) -> list[Sent]:
        """Writes the records of one transaction."""
        streams = list(self._keys)
        batches = self._random.randint(1, BATCHES_MAX)
        return [self._send(transaction, self._random.choice(streams)) for _ in range(batches)]

    def _send(
        self, transaction: Transaction, stream: int, body: Sequence[int] = (), **more: object
    ) -> Sent:
        """One batch; `more`: additional fields of its line in the history."""
        config, count = self._config, self._config.batch_records
        first = self._sequences[stream]
        self._sequences[stream] += count
        size = config.record_bytes
        data = build_values(config.tag, stream, first, count, size, body=body)
        values = [data[at : at + size] for at in range(0, len(data), size)]
        self._write("send", stream, first, **more)
        delivery: ColumnsDelivery = transaction.send_columns(
            config.topic, values, [self._keys[stream]] * count
        )
        return (stream, first), delivery

    def _commit(self, transaction: Transaction, stopping: threading.Event) -> None:
        """Asks again while the outcome is unknown; raises TransactionError."""
        while True:
            try:
                transaction.commit()
            except TransactionError as error:
                if not error.unknown_outcome or error.code is ErrorCode.PRODUCER_FENCED:
                    raise
                if stopping.is_set():
                    raise
            else:
                return

    def _acknowledge(
        self,
        stream: int,
        first: int,
        delivery: ColumnsDelivery,
        acknowledged: Callable[[int], None],
    ) -> None:
        (report,) = delivery.result()
        self._write("ack", stream, first, p=report.partition, o=report.base_offset)
        acknowledged(self._config.batch_records)

    def _give_up(self, transaction: Transaction, error: PenstockError) -> bool:
        with suppress(PenstockError):  # it has already ended, or will by its timeout
            transaction.abort()
        return error.code is not ErrorCode.PRODUCER_FENCED

    def _write(self, kind: str, stream: int, first: int, **more: object) -> None:
        run = {"s": stream, "q": first, "n": self._config.batch_records, "x": self._number}
        self._history.write({"e": kind, **run, **more, "t": self._now_ms()})

    def _ended(self, how: str) -> None:
        at = {"x": self._number, "how": how, "t": self._now_ms()}
        self._history.write({"e": "ended-tx", **at})


def high_watermarks(
    bootstrap: str,
    partitions: Sequence[TopicPartition],
    options: ClientOptions,
) -> dict[TopicPartition, int]:
    """Where logs end for readers that also see uncommitted records."""
    with Consumer(bootstrap, isolation_level="read_uncommitted", **options) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_end()
        return {tp: consumer.position(tp) for tp in partitions}
