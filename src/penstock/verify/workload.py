"""The recorded workload: producers and consumers on a real cluster, through the public client.

    producer threads ──send_columns──▶ cluster ◀──poll── reader threads
          │ send, ack, fail, unknown                 │ read, odd
          └───────────────▶ HistoryWriter ◀──────────┘   … at the end: final, ends

Each producer owns a few keys and numbers the records of each; keys are chosen so that every
partition is written to. The outcome of each delivery is recorded as it was: acknowledged,
definitely failed (nothing was appended) or unknown. A thread that cannot continue records why and
ends; the others continue. Nothing is checked here; `check.py` does that.

The end, in this order: producers settle everything; live readers read to the ends of the logs; the
ends are looked up again, because a record of unknown outcome may have become visible since; a
group's members get everything up to there; the final reader reads everything up to there.
"""

import itertools
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol

from penstock.client import (
    LATEST,
    Admin,
    ColumnsDelivery,
    ConsumedBatch,
    Consumer,
    ListedOffset,
    Producer,
)
from penstock.client.config import AddressResolver
from penstock.core.partitioner import partition_for_key
from penstock.core.types import Acks, Sync, TopicPartition
from penstock.errors import ErrorCode, MisuseError, PenstockError
from penstock.verify.bank import BANK_BODY, BankProducer, check_bank
from penstock.verify.group_readers import GroupConfig, GroupReaders
from penstock.verify.history import HistoryWriter
from penstock.verify.pipe import Pipe, PipeConfig, target_of
from penstock.verify.recording import lines_of
from penstock.verify.records import build_values
from penstock.verify.ring import Ring, check_ring, ring_topics
from penstock.verify.ring_member import HOPS_MAX, RingConfig
from penstock.verify.transactional import (
    BATCHES_MAX,
    TransactionalConfig,
    TransactionalProducer,
    high_watermarks,
)

_Thread = threading.Thread

FINAL_READER: Final = "final"
PENDING_MAX: Final = 64
PENDING_PAUSE_S: Final = 0.01
REFUSED_PAUSE_S: Final = 0.1
POLL_SECONDS: Final = 0.5
BATCH_BYTES_MAX: Final = 128 * 1024


@dataclass(frozen=True, slots=True)
class WorkloadConfig:
    """The workload. `rate` records/s over all producers; 0 = as fast as possible.

    `keys` per producer. `batch_records` records of one key are sent at a time. `settle_s` bounds
    how long readers at the end wait for leaders and for progress. `delivery_timeout_ms` is the
    producers' setting. A topic that is not there is created with `replication_factor` and
    `topic_configs`; it keeps its records for ever, because records deleted by retention would seem
    lost. `resolve_address` is every client's setting. `group` "" = no group; otherwise, this many
    `members` share the topic, each for about `churn_s` (0 = for ever). `transactions`: producers
    write in transactions, some of which they abort. `bank`: their transactions are transfers
    between `keys` accounts (`bank.py`). `pipe`: this many `members`, with churn, copy the topic to
    another one in transactions (`pipe.py`). `ring`: this many pass records on from each of two
    topics to the other one (`ring.py`).
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
    delivery_timeout_ms: int = 120_000
    topic_configs: Mapping[str, str] = field(default_factory=lambda: {"retention.ms": "-1"})
    resolve_address: AddressResolver | None = None
    group: str = ""
    members: int = 3
    churn_s: float = 0.0
    transactions: bool = False
    bank: bool = False
    pipe: bool = False
    ring: bool = False


class Progress(Protocol):
    """Receives progress, from any thread."""

    def acknowledged(self, records: int) -> None: ...

    def read(self, records: int) -> None: ...


class SilentProgress:
    """Ignores progress."""

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

    An error in any thread (for example, a consumer that fell behind) ends that thread and is
    recorded in the history, where the checker finds it. Raises MisuseError for settings that a bank
    or a ring cannot use.
    """

    def __init__(
        self, config: WorkloadConfig, history: HistoryWriter, progress: Progress | None = None
    ) -> None:
        if config.ring:
            beside = "bank" if config.bank else "pipe" if config.pipe else ""
            check_ring(config.record_bytes, beside)
        if config.bank:
            check_bank(config.keys, config.record_bytes)
            config = replace(config, transactions=True, batch_records=1)
        # One call must be one batch, which has one outcome.
        whole = max(1, min(config.batch_records, BATCH_BYTES_MAX // config.record_bytes))
        self._config = replace(config, batch_records=whole)
        self._history = history
        self._progress: Progress = progress or SilentProgress()
        self._tag = random.SystemRandom().getrandbits(63)
        self._stopping = threading.Event()
        self._producers: list[_Thread] = []
        self._readers: list[_Thread] = []
        self._open: list[Producer] = []
        self._ends: dict[TopicPartition, int] | None = None
        self._began = time.monotonic()
        self._partitions: list[TopicPartition] = []
        self._group: GroupReaders | None = None
        self._pipe: Pipe | Ring | None = None
        self._members: list[_Thread] = []

    @property
    def tag(self) -> int:
        """Names this run: in its records, and in the transactional ids of its producers."""
        return self._tag

    def start(self) -> None:
        """Creates the topic if it does not exist, and starts all threads.

        Raises PenstockError if the cluster cannot be reached or refuses the topic.
        """
        config = self._config
        with Admin(config.bootstrap, resolve_address=config.resolve_address) as admin:
            self._create_topic(admin, config.topic, config.partitions)
            topic = admin.describe_topics([config.topic])[config.topic]
            self._partitions = [
                TopicPartition(config.topic, each.partition) for each in topic.partitions
            ]
            begins = admin.list_offsets(dict.fromkeys(self._partitions, LATEST))
            for target in (
                self._targets()
            ):  # the same number of partitions, so that the order of each key can be kept
                self._create_topic(admin, target, len(self._partitions))
        self._starts = {tp: found.offset for tp, found in begins.items()}
        self._began = time.monotonic()
        self._history.write(
            {
                "e": "start",
                "run": self._tag,
                "topic": config.topic,
                "acks": config.acks.name,
                "partitions": len(self._partitions),
                "sync": config.sync.name,
                "bytes": config.record_bytes,
                **({"pipe": target_of(config.topic)} if config.pipe else {}),
                **({"ring": HOPS_MAX} if config.ring else {}),
            }
        )
        readers = (f"reader-{index}" for index in range(config.consumers))
        self._readers = self._threads(
            {name: partial(self._consume, name, "read") for name in readers}
        )
        if config.group:
            self._start_group()
        if config.pipe or config.ring:
            self._pipe = self._new_ring() if config.ring else self._new_pipe()
            self._pipe.begin(self._starts)
            self._members += self._threads(self._pipe.work())
        produce = self._produce_in_transactions if config.transactions else self._produce
        self._producers = self._threads(
            {f"producer-{index}": partial(produce, index) for index in range(config.producers)}
        )

    def stop(self) -> None:
        """Ends producers, lets readers reach the end, reads everything back. Never raises."""
        self._stopping.set()
        for thread in self._producers:
            thread.join()
        self._ends = self._end_offsets()
        for thread in self._readers:
            thread.join()
        self._ends = self._end_offsets()
        if self._group is not None:
            self._guard("group", partial(self._group.end_at, self._ends))
        if self._pipe is not None:
            self._pipe.end_at(self._ends)
        for thread in self._members:
            thread.join()
        self._guard(FINAL_READER, self._read_back)
        if self._pipe is not None:
            self._guard("ring reader" if self._config.ring else "pipe reader", self._pipe.read_back)
        self._history.close()

    def abandon(self) -> None:
        """Gives up everything at once; the history stays unfinished."""
        self._stopping.set()
        if self._group is not None:
            self._group.abandon()
        if self._pipe is not None:
            self._pipe.abandon()
        for producer in self._open:
            producer.close(0.0)

    def _create_topic(self, admin: Admin, topic: str, partitions: int) -> None:
        """Unless it exists."""
        config = self._config
        if topic not in admin.list_topics():
            admin.create_topic(topic, partitions, config.replication_factor, config.topic_configs)

    def _start_group(self) -> None:
        config = self._config
        self._group = GroupReaders(
            GroupConfig(
                config.bootstrap,
                config.topic,
                config.group,
                config.members,
                config.churn_s,
                config.settle_s,
                config.resolve_address,
            ),
            self._history,
            self._record_batch,
            self._now_ms,
        )
        self._group.begin(self._starts)
        names = [f"member-{index}" for index in range(config.members)]
        work = {name: partial(self._group.run_member, name) for name in names}
        self._members += self._threads({**work, "watcher": self._group.watch})

    def _targets(self) -> tuple[str, ...]:
        """Topics that are written to besides the topic."""
        topic = self._config.topic
        if self._config.ring:
            return ring_topics(topic)
        return (target_of(topic),) if self._config.pipe else ()

    def _new_pipe(self) -> Pipe:
        config = self._config
        return Pipe(
            PipeConfig(
                bootstrap=config.bootstrap,
                source=config.topic,
                target=target_of(config.topic),
                group=f"verify-pipe-{self._tag:x}",
                members=config.members,
                churn_s=config.churn_s,
                settle_s=config.settle_s,
                resolve_address=config.resolve_address,
            ),
            self._record_batch,
        )

    def _new_ring(self) -> Ring:
        config = self._config
        return Ring(
            RingConfig(
                bootstrap=config.bootstrap,
                topic=config.topic,
                tag=self._tag,
                record_bytes=config.record_bytes,
                members=config.members,
                churn_s=config.churn_s,
                settle_s=config.settle_s,
                resolve_address=config.resolve_address,
            ),
            self._history,
            self._now_ms,
        )

    def _threads(self, work: Mapping[str, Callable[[], None]]) -> list[_Thread]:
        threads = [
            _Thread(target=self._guard, args=(name, body), name=f"verify-{name}", daemon=True)
            for name, body in work.items()
        ]
        for thread in threads:
            thread.start()
        return threads

    def _guard(self, name: str, body: Callable[[], None]) -> None:
        """Does a thread's work; an error that ends it early is recorded in the history."""
        try:
            body()
        except Exception as error:  # noqa: BLE001 - the judge makes a verdict of it
            why = error.message if isinstance(error, PenstockError) else repr(error)
            self._history.write({"e": "ended", "who": name, "why": why, "t": self._now_ms()})

    def _now_ms(self) -> float:
        return round((time.monotonic() - self._began) * 1000, 1)

    # ------------------------------------------------------------------ producing

    def _produce(self, index: int) -> None:
        config = self._config
        streams = [index * config.keys + key for key in range(config.keys)]
        keys = {stream: self._key(stream) for stream in streams}
        sequences = dict.fromkeys(streams, 0)
        pending: deque[_Pending] = deque()
        pause_s = config.batch_records * config.producers / config.rate if config.rate else 0.0
        due = time.monotonic()
        with Producer(
            config.bootstrap,
            acks=config.acks,
            sync=config.sync,
            delivery_timeout_ms=config.delivery_timeout_ms,
            resolve_address=config.resolve_address,
        ) as producer:
            self._open.append(producer)
            turn = 0
            while not self._stopping.is_set():
                stream = streams[turn % len(streams)]
                turn += 1
                sent = self._send(producer, stream, sequences[stream], keys[stream])
                sequences[stream] += config.batch_records
                if sent is not None:
                    pending.append(sent)
                self._harvest(pending)
                while len(pending) >= PENDING_MAX and not self._stopping.wait(PENDING_PAUSE_S):
                    self._harvest(pending)
                due = max(due + pause_s, time.monotonic() - 1.0)
                self._stopping.wait(max(0.0, due - time.monotonic()))
            while pending:
                self._harvest(pending)
                time.sleep(PENDING_PAUSE_S)

    def _produce_in_transactions(self, index: int) -> None:
        config = self._config
        streams = range(index * config.keys, (index + 1) * config.keys)
        per_s = config.rate / config.producers / config.batch_records if config.rate else 0.0
        kind = BankProducer if config.bank else TransactionalProducer
        kind(
            TransactionalConfig(
                bootstrap=config.bootstrap,
                topic=config.topic,
                partitions=len(self._partitions),
                tag=self._tag,
                batch_records=config.batch_records,
                record_bytes=config.record_bytes,
                pause_s=BATCHES_MAX / 2 / per_s if per_s else 0.0,
                delivery_timeout_ms=config.delivery_timeout_ms,
                resolve_address=config.resolve_address,
            ),
            index,
            {stream: self._key(stream) for stream in streams},
            self._history,
            self._now_ms,
        ).run(self._stopping, self._progress.acknowledged)

    def _key(self, stream: int) -> bytes:
        """A key that hashes to the next partition in turn; accounts are shared by all producers."""
        count = len(self._partitions)
        turn = stream % self._config.keys if self._config.bank else stream
        names = (f"verify-{turn}-{salt}".encode() for salt in itertools.count())
        return next(key for key in names if partition_for_key(key, count) == turn % count)

    def _send(self, producer: Producer, stream: int, first: int, key: bytes) -> _Pending | None:
        """Sends a batch; None if the client refused it, which is recorded."""
        config = self._config
        count, size = config.batch_records, config.record_bytes
        data = build_values(self._tag, stream, first, count, size)
        values = [data[at : at + size] for at in range(0, len(data), size)]
        run = {"s": stream, "q": first, "n": count}
        self._history.write({"e": "send", **run, "t": self._now_ms()})
        try:
            delivery = producer.send_columns(config.topic, values, [key] * count)
        except MisuseError:
            raise  # the workload's own mistake: it ends here
        except PenstockError as error:
            # One batch is accepted whole or not at all: nothing of it was sent.
            if error.code is ErrorCode.CLOSED:
                raise
            self._history.write({"e": "fail", **run, "why": error.code.name, "t": self._now_ms()})
            self._stopping.wait(REFUSED_PAUSE_S)
            return None
        return _Pending(delivery, stream, first, count)

    def _harvest(self, pending: deque[_Pending]) -> None:
        """Records every known outcome, in the order of sending."""
        for _ in range(len(pending)):
            sent = pending.popleft()
            if sent.delivery.done():
                self._record_outcome(sent)
            else:
                pending.append(sent)

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

    def _read_back(self) -> None:
        high = self._high_watermarks() if self._config.transactions else {}
        for tp, end in (self._ends or {}).items():
            ends = {"e": "ends", "p": tp.partition, "lo": self._starts[tp], "hi": end}
            self._history.write(ends | ({"hw": high[tp]} if high else {}))
        self._consume(FINAL_READER, "final")
        if self._config.transactions:
            for tp, end in (self._ends or {}).items():  # it got there, or raised
                self._history.write({"e": "reached", "p": tp.partition, "o": end})

    def _high_watermarks(self) -> dict[TopicPartition, int]:
        """Waits, with a limit, until readers of committed records can read up to there."""
        config = self._config
        until = time.monotonic() + config.settle_s
        while True:
            high = high_watermarks(config.bootstrap, self._partitions, config.resolve_address)
            self._ends = self._end_offsets()
            if self._ends == high or time.monotonic() > until:
                return high
            time.sleep(POLL_SECONDS)

    def _consume(self, reader: str, kind: str) -> None:
        """Reads from where the run started until `_ends` is known and reached."""
        config = self._config
        progressed = time.monotonic()
        with Consumer(config.bootstrap, resolve_address=config.resolve_address) as consumer:
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
        config = self._config
        at = {"r": reader, "p": batch.partition, "t": self._now_ms()}
        body = BANK_BODY if config.bank else ()
        for line in lines_of(batch, self._tag, config.record_bytes, kind=kind, body=body):
            self._history.write({**line, **at})
        if kind in ("read", "got"):
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
        """Where the logs end now; if unknown, nothing, and a line in the history."""
        found: dict[TopicPartition, ListedOffset] = {}

        def ask() -> None:
            timeout_ms = int(self._config.settle_s * 1000)
            with Admin(
                self._config.bootstrap,
                request_timeout_ms=timeout_ms,
                resolve_address=self._config.resolve_address,
            ) as admin:
                found.update(admin.list_offsets(dict.fromkeys(self._partitions, LATEST)))

        self._guard("end offsets", ask)
        return {tp: each.offset for tp, each in found.items()}
