"""A Penstock cluster as a target, and as a source, by its client.

Progress is kept as committed offsets with metadata of a group named after the source's cluster:
its lag is what the copy has not written, so 0. Reading is of committed records only.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from time import monotonic, sleep
from types import TracebackType
from typing import Final, Self

from penstock.client import (
    EARLIEST,
    LATEST,
    Admin,
    ColumnsDelivery,
    Consumer,
    OffsetAndMetadata,
    Producer,
    TopicDescription,
)
from penstock.client.config import ClientOptions
from penstock.core.topic import TopicConfig
from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode, MisuseError
from penstock.migration.fitting import misfits_of, own_limit
from penstock.migration.model import Bounds, Misfit, Progress, Reader, Rows, Topic
from penstock.migration.plan import matching, refused_here

KNOWN_S: Final = 30.0
RETRY_S: Final = 0.1
_MAX_MESSAGE: Final = "max.message.bytes"


class Penstock:
    """A `Target` and a `Source`; to be closed."""

    def __init__(self, bootstrap: str, options: ClientOptions, copy_id: str = "") -> None:
        self._bootstrap = bootstrap
        self._options = options
        self.copy_id = copy_id
        self._admin = Admin(bootstrap, **options)
        self._cluster = self._admin.describe_cluster()
        self._producer: Producer | None = None
        self._committer: Consumer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for each in (self._producer, self._committer, self._admin):
            if each is not None:
                each.close()

    @property
    def name(self) -> str:
        return f"Penstock at {self._bootstrap}"

    @property
    def cluster_id(self) -> str:
        return self._cluster.cluster_id

    @property
    def brokers(self) -> int:
        return sum(broker.alive for broker in self._cluster.brokers)

    def topics(self, patterns: Sequence[str]) -> list[Topic]:
        chosen = matching(patterns, self._admin.list_topics(), self.name)
        return [_topic(each) for each in self._admin.describe_topics(chosen).values()]

    def find(self, topic: str) -> Topic | None:
        if topic not in self._admin.list_topics():
            return None
        return _topic(self._admin.describe_topics([topic])[topic])

    def check(self, topic: Topic) -> str:
        """What is refused about a new topic, or ""."""
        reason = refused_here(topic)
        if reason:
            return reason
        try:
            self._create(topic, validate_only=True)
        except (ClusterError, MisuseError) as error:
            return error.message
        return ""

    def create(self, topic: Topic) -> None:
        """Returns when the copy's progress can be stored, too.

        The group's coordinator may be told of the topic later than the broker that was asked.
        Raises ClusterError(UNKNOWN_TOPIC) if it has not been after KNOWN_S.
        """
        self._create(topic, validate_only=False)
        ends_at = monotonic() + KNOWN_S
        while True:
            try:
                self._of_group().committed([TopicPartition(topic.name, 0)])
            except ClusterError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC or monotonic() >= ends_at:
                    raise
                sleep(RETRY_S)
            else:
                return

    def alter(self, topic: str, configs: Mapping[str, str | None]) -> None:
        wanted = {name: value for name, value in configs.items() if value is not None}
        self._admin.alter_configs(topic, wanted, unset=configs.keys() - wanted.keys())

    def _create(self, topic: Topic, *, validate_only: bool) -> None:
        self._admin.create_topic(
            topic.name,
            topic.partitions,
            min(topic.replicas, self.brokers),
            dict(topic.configs),
            validate_only=validate_only,
        )

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        wanted = list(partitions)
        first = self._admin.list_offsets(dict.fromkeys(wanted, EARLIEST))
        end = self._admin.list_offsets(dict.fromkeys(wanted, LATEST))
        return {where: Bounds(first[where].offset, end[where].offset) for where in wanted}

    def waiting(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        seen = {where: self._admin.partition_transactions(where) for where in partitions}
        return {
            where: each.high_watermark - each.last_stable_offset
            for where, each in seen.items()
            if each.open and each.high_watermark > each.last_stable_offset
        }

    def misfits(self, rows: Rows, topic: Topic) -> list[Misfit]:
        return misfits_of(rows, topic, own_limit)

    def append(self, where: TopicPartition, rows: Rows) -> "_OwnAppending":
        if self._producer is None:
            self._producer = Producer(self._bootstrap, acks="all", **self._options)
        delivery = self._producer.send_columns(
            where.topic,
            rows.values,
            rows.keys,
            timestamps_ms=rows.timestamps_ms,
            partition=where.partition,
            headers=rows.headers,
        )
        return _OwnAppending(self.name, where, delivery)

    def read(self, starts: Mapping[TopicPartition, int]) -> Reader:
        return _OwnReader(self._bootstrap, self._options, starts, self.bounds)

    def progress(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Progress | None]:
        found = self._of_group().committed(partitions)
        return {
            where: None if entry is None else Progress.parse(entry.metadata)
            for where, entry in found.items()
        }

    def store(self, progress: Mapping[TopicPartition, Progress]) -> None:
        self._of_group().commit(
            {
                where: OffsetAndMetadata(each.target_next, each.serialise())
                for where, each in progress.items()
            }
        )

    def _of_group(self) -> Consumer:
        if self._committer is None:
            self._committer = Consumer(
                self._bootstrap, group_id=self.copy_id, enable_auto_commit=False, **self._options
            )
        return self._committer

    def group_offsets(self, group: str, topics: Iterable[str]) -> dict[TopicPartition, int]:
        wanted = set(topics)
        try:
            described = self._admin.describe_group(group)
        except ClusterError as error:
            if error.code is ErrorCode.UNKNOWN_GROUP:
                return {}
            raise
        return {
            where: entry.offset
            for where, entry in described.offsets.items()
            if where.topic in wanted
        }

    def set_group(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        self._admin.reset_offsets(group, dict(offsets), reason="imported")


class _OwnAppending:
    def __init__(self, name: str, where: TopicPartition, delivery: ColumnsDelivery) -> None:
        self._name = name
        self._where = where
        self._delivery = delivery

    def done(self) -> bool:
        return self._delivery.done()

    def base_offset(self) -> int:
        reports = self._delivery.result()
        expected = reports[0].base_offset
        for report in reports:
            if report.base_offset != expected:
                raise ClusterError(
                    f"{self._name}: {self._where}: records got offset {report.base_offset}, and "
                    f"{expected} was expected: somebody else writes there",
                    ErrorCode.INVALID_REQUEST,
                )
            expected += report.record_count
        return reports[0].base_offset


class _OwnReader:
    """Ends are asked for when a poll brings nothing, and hold until records come."""

    def __init__(
        self,
        bootstrap: str,
        options: ClientOptions,
        starts: Mapping[TopicPartition, int],
        bounds: Callable[[Iterable[TopicPartition]], dict[TopicPartition, Bounds]],
    ) -> None:
        self._bounds = bounds
        self._positions = dict(starts)
        self._ends: dict[TopicPartition, int] = {}
        self._consumer = Consumer(
            bootstrap, isolation_level="read_committed", auto_offset_reset="error", **options
        )
        self._consumer.assign(starts)
        for where, offset in starts.items():
            self._consumer.seek(where, offset)

    def poll(self, timeout_s: float) -> list[tuple[TopicPartition, Rows]]:
        found = []
        for batch in self._consumer.poll(timeout_s):
            where = batch.topic_partition
            self._positions[where] = batch.next_offset
            self._ends.pop(where, None)
            found.append(
                (
                    where,
                    Rows(
                        batch.next_offset,
                        list(batch.offsets()),
                        batch.keys(),
                        batch.values(),
                        batch.timestamps_ms(),
                        list(batch.headers()),
                    ),
                )
            )
        if not found:  # and what it passed meanwhile is before these ends
            self._ends = {where: each.end for where, each in self._bounds(self._positions).items()}
        return found + self._passed({where for where, _ in found})

    def _passed(self, others: Collection[TopicPartition]) -> list[tuple[TopicPartition, Rows]]:
        """Others than these, which have gone on over markers and aborted records."""
        found = []
        for where in self._positions.keys() - set(others):
            position = self._consumer.position(where)
            if position > self._positions[where]:
                self._positions[where] = position
                found.append((where, Rows(position)))
        return found

    def at_end(self, where: TopicPartition) -> bool:
        end = self._ends.get(where)
        return end is not None and self._positions[where] >= end

    def close(self) -> None:
        self._consumer.close()


def _topic(described: TopicDescription) -> Topic:
    own = {k: v for k, v in described.configs.items() if k not in described.inherited}
    in_force = TopicConfig().to_mapping() | dict(described.configs)
    limit = described.configs.get(_MAX_MESSAGE)
    return Topic(
        name=described.topic,
        partitions=len(described.partitions),
        replicas=max(len(each.replicas) for each in described.partitions),
        configs=own,
        max_message_bytes=int(limit) if limit else TopicConfig().max_message_bytes,
        topic_id=described.topic_id,
        inherited={k: v for k, v in in_force.items() if k not in own},
    )
