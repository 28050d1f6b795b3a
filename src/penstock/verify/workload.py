"""The recorded workload: producers and consumers on a real cluster, through the public client.

    producer threads ──send_columns──▶ cluster ◀──poll── reader threads
          │ send, ack, fail, unknown                 │ read, odd
          └───────────────▶ HistoryWriter ◀──────────┘   … at the end: final, ends

Each producer owns a few keys and numbers the records of each; keys are chosen so that every
partition is written to. The outcome of each delivery is recorded as it was: acknowledged,
definitely failed (nothing was appended) or unknown. A thread that cannot continue records why and
ends; the others continue. Nothing is checked here; `check.py` does that.

This module only composes: producers are in `plain_producer.py`, `transactional.py` and `bank.py`,
readers in `readers.py` and `group_readers.py`, loops that read and write in `pipe.py` and
`ring.py`, settings in `workload_config.py`.

The end, in this order: producers settle everything; live readers read to the ends of the logs; the
ends are looked up again, because a record of unknown outcome may have become visible since; a
group's members get everything up to there; the final reader reads everything up to there.
"""

import itertools
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from penstock.client import LATEST, Admin, ConsumedBatch, ListedOffset
from penstock.client.config import ClientOptions
from penstock.core.partitioner import partition_for_key
from penstock.core.types import TopicPartition
from penstock.errors import PenstockError
from penstock.verify.bank import BANK_BODY, BankProducer, check_bank
from penstock.verify.group_readers import GroupReaders, GroupReadersConfig
from penstock.verify.history import HistoryWriter
from penstock.verify.pipe import Pipe, PipeConfig, target_of
from penstock.verify.plain_producer import PlainProducer
from penstock.verify.readers import FINAL_READER, Readers
from penstock.verify.recording import lines_of
from penstock.verify.ring import Ring, check_ring, ring_topics
from penstock.verify.ring_member import HOPS_MAX, RingConfig
from penstock.verify.transactional import BATCHES_MAX, TransactionalConfig, TransactionalProducer
from penstock.verify.workload_config import Progress, SilentProgress, WorkloadConfig

_Thread = threading.Thread

BATCH_BYTES_MAX: Final = 128 * 1024


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
        self._began = time.monotonic()
        self._starts: dict[TopicPartition, int] = {}
        self._plain: list[PlainProducer] = []
        self._producers: list[_Thread] = []
        self._readers = Readers(self._config, history, self._record_batch, self._end_offsets)
        self._live: list[_Thread] = []
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
        with Admin(config.bootstrap, **config.options) as admin:
            self._create_topic(admin, config.topic, config.partitions)
            topic = admin.describe_topics([config.topic])[config.topic]
            partitions = [TopicPartition(config.topic, each.partition) for each in topic.partitions]
            begins = admin.list_offsets(dict.fromkeys(partitions, LATEST))
            # The same number of partitions, so that the order of each key can be kept.
            for target in self._targets():
                self._create_topic(admin, target, len(partitions))
        self._starts = {tp: found.offset for tp, found in begins.items()}
        self._began = time.monotonic()
        self._history.write(
            {
                "e": "start",
                "run": self._tag,
                "topic": config.topic,
                "acks": config.acks.name,
                "partitions": len(self._starts),
                "sync": config.sync.name,
                "bytes": config.record_bytes,
                **({"pipe": target_of(config.topic)} if config.pipe else {}),
                **({"ring": HOPS_MAX} if config.ring else {}),
            }
        )
        self._readers.begin(self._starts)
        names = (f"reader-{index}" for index in range(config.consumers))
        self._live = self._threads({name: partial(self._readers.read_live, name) for name in names})
        if config.group:
            self._start_group()
        if config.pipe or config.ring:
            self._pipe = self._new_ring() if config.ring else self._new_pipe()
            self._pipe.begin(self._starts)
            self._members += self._threads(self._pipe.work())
        self._producers = self._threads(
            {f"producer-{index}": self._producing(index) for index in range(config.producers)}
        )

    def stop(self) -> None:
        """Ends producers, lets readers reach the end, reads everything back. Never raises."""
        self._stopping.set()
        for thread in self._producers:
            thread.join()
        self._readers.end_at(self._end_offsets())
        for thread in self._live:
            thread.join()
        ends = self._end_offsets()
        self._readers.end_at(ends)
        if self._group is not None:
            self._guard("group", partial(self._group.end_at, ends))
        if self._pipe is not None:
            self._pipe.end_at(ends)
        for thread in self._members:
            thread.join()
        self._guard(FINAL_READER, self._readers.read_back)
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
        for producer in self._plain:
            producer.abandon()

    def _create_topic(self, admin: Admin, topic: str, partitions: int) -> None:
        """Unless it exists."""
        config = self._config
        if topic not in admin.list_topics():
            admin.create_topic(topic, partitions, config.replication_factor, config.topic_configs)

    def _start_group(self) -> None:
        config = self._config
        self._group = GroupReaders(
            GroupReadersConfig(
                config.bootstrap,
                config.topic,
                config.group,
                config.members,
                config.churn_s,
                config.settle_s,
                config.options,
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
                options=config.options,
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
                options=config.options,
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

    def _producing(self, index: int) -> Callable[[], None]:
        """The work of one producer's thread."""
        config = self._config
        streams = range(index * config.keys, (index + 1) * config.keys)
        keys = {stream: self._key(stream) for stream in streams}
        producer: PlainProducer | TransactionalProducer
        if config.transactions:
            kind = BankProducer if config.bank else TransactionalProducer
            settings = self._transactional()
            producer = kind(settings, index, keys, self._history, self._now_ms)
        else:
            producer = PlainProducer(config, self._tag, keys, self._history, self._now_ms)
            self._plain.append(producer)
        return partial(producer.run, self._stopping, self._progress.acknowledged)

    def _transactional(self) -> TransactionalConfig:
        config = self._config
        per_s = config.rate / config.producers / config.batch_records if config.rate else 0.0
        return TransactionalConfig(
            bootstrap=config.bootstrap,
            topic=config.topic,
            partitions=len(self._starts),
            tag=self._tag,
            batch_records=config.batch_records,
            record_bytes=config.record_bytes,
            pause_s=BATCHES_MAX / 2 / per_s if per_s else 0.0,
            delivery_timeout_ms=config.delivery_timeout_ms,
            options=config.options,
        )

    def _key(self, stream: int) -> bytes:
        """A key that hashes to the next partition in turn; accounts are shared by all producers."""
        count = len(self._starts)
        turn = stream % self._config.keys if self._config.bank else stream
        names = (f"verify-{turn}-{salt}".encode() for salt in itertools.count())
        return next(key for key in names if partition_for_key(key, count) == turn % count)

    def _record_batch(self, reader: str, kind: str, batch: ConsumedBatch) -> None:
        config = self._config
        at = {"r": reader, "p": batch.partition, "t": self._now_ms()}
        body = BANK_BODY if config.bank else ()
        for line in lines_of(batch, self._tag, config.record_bytes, kind=kind, body=body):
            self._history.write({**line, **at})
        if kind in ("read", "got"):
            self._progress.read(batch.record_count)

    def _end_offsets(self) -> dict[TopicPartition, int]:
        """Where the logs end now; if unknown, nothing, and a line in the history."""
        found: dict[TopicPartition, ListedOffset] = {}

        def ask() -> None:
            timeout_ms = int(self._config.settle_s * 1000)
            options: ClientOptions = {**self._config.options, "request_timeout_ms": timeout_ms}
            with Admin(self._config.bootstrap, **options) as admin:
                found.update(admin.list_offsets(dict.fromkeys(self._starts, LATEST)))

        self._guard("end offsets", ask)
        return {tp: each.offset for tp, each in found.items()}
