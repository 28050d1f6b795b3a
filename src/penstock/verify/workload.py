"""The recorded workload: producers and consumers on a real cluster, through the public client.

    producer threads ──send_columns──▶ cluster ◀──poll── reader threads
          │ send, ack, fail, unknown                 │ read, odd
          └───────────────▶ HistoryWriter ◀──────────┘   … at the end: final, ends

Each producer owns a few keys and numbers the records of each. What a delivery handle answers is
written as it was: acknowledged, failed definitely (nothing was appended) or unknown. Nothing is
judged here; `check.py` does.
"""

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from penstock.client import (
    LATEST,
    Admin,
    ColumnsDelivery,
    ConsumedBatch,
    Consumer,
    Producer,
)
from penstock.core.types import Acks, Sync, TopicPartition
from penstock.errors import ErrorCode, PenstockError
from penstock.verify.history import HistoryWriter
from penstock.verify.records import build_values, parse_values

_Body = Callable[[int], None]

FINAL_READER: Final = "final"
PENDING_MAX: Final = 64
POLL_SECONDS: Final = 0.5
BATCH_BYTES_MAX: Final = 128 * 1024


@dataclass(frozen=True, slots=True)
class WorkloadConfig:
    """What to put on the cluster. `rate` records/s over all producers; 0 = as fast as it goes.

    `batch_records` records of one key are handed over at a time. `settle_s` bounds how long the
    final read-back waits without progress.
    """

    bootstrap: str
    topic: str
    partitions: int = 6
    replication_factor: int = 3
    acks: Acks = Acks.ALL
    sync: Sync = Sync.OS
    producers: int = 2
    consumers: int = 1
    keys: int = 8
    record_bytes: int = 128
    batch_records: int = 100
    rate: int = 5_000
    settle_s: float = 60.0


class Progress(Protocol):
    """Hears about progress, from any thread."""

    def acknowledged(self, records: int) -> None: ...

    def read(self, records: int) -> None: ...


class SilentProgress:
    """Hears nothing."""

    def acknowledged(self, records: int) -> None:
        pass

    def read(self, records: int) -> None:
        pass


@dataclass(slots=True)
class _Pending:
    delivery: ColumnsDelivery
    stream: int
    sequence: int
    count: int


class Workload:
    """Call `start`, later `stop`; then the history is complete and closed.

    An error in any thread (say, a consumer that could not follow) ends that thread and is
    raised by `stop` after the rest has ended in good order.
    """

    def __init__(
        self, config: WorkloadConfig, history: HistoryWriter, progress: Progress | None = None
    ) -> None:
        # One call must be one batch, which has one outcome.
        whole = max(1, min(config.batch_records, BATCH_BYTES_MAX // config.record_bytes))
        self._config = replace(config, batch_records=whole)
        self._history = history
        self._progress: Progress = progress or SilentProgress()
        self._tag = random.SystemRandom().getrandbits(63)
        self._stopping = threading.Event()
        self._producers: list[threading.Thread] = []
        self._readers: list[threading.Thread] = []
        self._ends: dict[TopicPartition, int] | None = None
        self._errors: list[BaseException] = []
        self._began = time.monotonic()
        self._partitions: list[TopicPartition] = []

    def start(self) -> None:
        """Creates the topic if it is not there and starts all threads."""
        config = self._config
        with Admin(config.bootstrap) as admin:
            if config.topic not in admin.list_topics():
                admin.create_topic(config.topic, config.partitions, config.replication_factor)
            topic = admin.describe_topics([config.topic])[config.topic]
            self._partitions = [
                TopicPartition(config.topic, each.partition) for each in topic.partitions
            ]
            begins = admin.list_offsets(dict.fromkeys(self._partitions, LATEST))
        self._starts = {tp: found.offset for tp, found in begins.items()}
        self._began = time.monotonic()
        self._history.write(
            {
                "e": "start",
                "run": self._tag,
                "topic": config.topic,
                "acks": config.acks.name,
                "sync": config.sync.name,
                "bytes": config.record_bytes,
            }
        )
        self._readers = self._threads("reader", config.consumers, self._read)
        self._producers = self._threads("producer", config.producers, self._produce)

    def stop(self) -> None:
        """Ends producers, lets readers reach the end, reads everything back; raises what failed."""
        self._stopping.set()
        for thread in self._producers:
            thread.join()
        try:
            self._ends = self._end_offsets()
        except PenstockError as error:
            self._errors.append(error)
            self._ends = {}
        for thread in self._readers:
            thread.join()
        if self._ends:
            self._guard(lambda _: self._read_back(), 0)
        self._history.close()
        if self._errors:
            raise self._errors[0]

    def _threads(self, kind: str, count: int, body: _Body) -> list[threading.Thread]:
        threads = [
            threading.Thread(
                target=self._guard, args=(body, index), name=f"verify-{kind}-{index}", daemon=True
            )
            for index in range(count)
        ]
        for thread in threads:
            thread.start()
        return threads

    def _guard(self, body: _Body, index: int) -> None:
        try:
            body(index)
        except Exception as error:  # noqa: BLE001 - kept and raised by stop()
            self._errors.append(error)

    def _now_ms(self) -> float:
        return round((time.monotonic() - self._began) * 1000, 1)

    # ------------------------------------------------------------------ producing

    def _produce(self, index: int) -> None:
        config = self._config
        streams = [index * config.keys + key for key in range(config.keys)]
        sequences = dict.fromkeys(streams, 0)
        pending: deque[_Pending] = deque()
        pause_s = config.batch_records * config.producers / config.rate if config.rate else 0.0
        due = time.monotonic()
        with Producer(config.bootstrap, acks=config.acks, sync=config.sync) as producer:
            turn = 0
            while not self._stopping.is_set():
                stream = streams[turn % len(streams)]
                turn += 1
                self._send(producer, stream, sequences, pending)
                self._harvest(pending, wait=len(pending) >= PENDING_MAX)
                due = max(due + pause_s, time.monotonic() - 1.0)
                self._stopping.wait(max(0.0, due - time.monotonic()))
            producer.flush()
            while pending:
                self._harvest(pending, wait=True)

    def _send(
        self,
        producer: Producer,
        stream: int,
        sequences: dict[int, int],
        pending: deque[_Pending],
    ) -> None:
        config, first = self._config, sequences[stream]
        count, size = config.batch_records, config.record_bytes
        data = build_values(self._tag, stream, first, count, size)
        values = [data[at : at + size] for at in range(0, len(data), size)]
        keys = [f"verify-{stream}".encode()] * count
        self._history.write({"e": "send", "s": stream, "q": first, "n": count, "t": self._now_ms()})
        sequences[stream] = first + count
        delivery = producer.send_columns(config.topic, values, keys)
        pending.append(_Pending(delivery, stream, first, count))

    def _harvest(self, pending: deque[_Pending], *, wait: bool) -> None:
        """Writes down every outcome that is known; with `wait`, at least the oldest."""
        while pending and (wait or pending[0].delivery.done()):
            wait = False
            self._record_outcome(pending.popleft())

    def _record_outcome(self, sent: _Pending) -> None:
        event: dict[str, object] = {"s": sent.stream, "q": sent.sequence, "n": sent.count}
        try:
            (report,) = sent.delivery.result()
        except PenstockError as error:
            unknown = getattr(error, "unknown_outcome", True)
            event |= {"e": "unknown" if unknown else "fail", "why": error.code.name}
        else:
            event |= {"e": "ack", "p": report.partition, "o": report.base_offset}
            self._progress.acknowledged(sent.count)
        self._history.write({**event, "t": self._now_ms()})

    # ------------------------------------------------------------------ reading

    def _read(self, index: int) -> None:
        self._consume(f"reader-{index}", "read")

    def _read_back(self) -> None:
        for tp, end in (self._ends or {}).items():
            self._history.write({"e": "ends", "p": tp.partition, "lo": self._starts[tp], "hi": end})
        self._consume(FINAL_READER, "final")

    def _consume(self, reader: str, kind: str) -> None:
        """Reads from where the run began until `_ends` is known and reached."""
        config = self._config
        progressed = time.monotonic()
        with Consumer(config.bootstrap) as consumer:
            consumer.assign(self._partitions)
            for tp, offset in self._starts.items():
                consumer.seek(tp, offset)
            while not self._reached(consumer):
                batches = consumer.poll(POLL_SECONDS)
                for batch in batches:
                    self._record_batch(reader, kind, batch)
                if batches or self._ends is None:
                    progressed = time.monotonic()
                elif time.monotonic() - progressed > config.settle_s:
                    raise PenstockError(
                        f"{reader} read nothing for {config.settle_s:.0f} s short of the end "
                        f"({self._missing(consumer)})",
                        ErrorCode.REQUEST_TIMED_OUT,
                    )

    def _record_batch(self, reader: str, kind: str, batch: ConsumedBatch) -> None:
        size = self._config.record_bytes
        data = batch.columns.value_data
        if len(data) != batch.columns.record_count * size:
            runs, odd = [], list(range(batch.first_offset, batch.next_offset))
        else:
            mine = data[batch.lo * size : batch.hi * size]
            runs, odd = parse_values(self._tag, mine, size, batch.first_offset)
        at = {"r": reader, "p": batch.partition, "t": self._now_ms()}
        for run in runs:
            where = {"o": run.offset, "s": run.stream, "q": run.sequence, "n": run.count}
            self._history.write({"e": kind, **at, **where})
        for offset in odd:
            self._history.write({"e": "odd", **at, "o": offset})
        if kind == "read":
            self._progress.read(batch.record_count)

    def _reached(self, consumer: Consumer) -> bool:
        ends = self._ends
        return ends is not None and all(consumer.position(tp) >= end for tp, end in ends.items())

    def _missing(self, consumer: Consumer) -> str:
        return ", ".join(
            f"{tp} at {consumer.position(tp)} of {end}"
            for tp, end in (self._ends or {}).items()
            if consumer.position(tp) < end
        )

    def _end_offsets(self) -> dict[TopicPartition, int]:
        with Admin(self._config.bootstrap) as admin:
            found = admin.list_offsets(dict.fromkeys(self._partitions, LATEST))
        return {tp: each.offset for tp, each in found.items()}
