"""Apache Kafka as a source and as a target, by confluent-kafka.

Reads committed records only, from assigned partitions: no group of Kafka changes by an import. An
export keeps its progress as committed offsets with metadata, in a group of Kafka that has its
name. Further settings of librdkafka (security.protocol, sasl.…, ssl.…) come from the user's file.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from time import monotonic, sleep
from typing import Any, Final

import confluent_kafka as kafka
from confluent_kafka import IsolationLevel, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    OffsetSpec,
)

from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode, MisuseError
from penstock.migration.fitting import kafka_limit, misfits_of
from penstock.migration.kafka_answers import PASSING, RETRY_S, TIMEOUT_S, asked, failed
from penstock.migration.kafka_records import KafkaAppending, KafkaReader
from penstock.migration.model import Bounds, Misfit, Progress, Reader, Rows, Topic
from penstock.migration.plan import matching

_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())  # our errors say what lasts; --debug shows the rest
CONNECT_S: Final = 12.0
"""For the first answer: an address that is wrong is said to be so while somebody still looks."""
LOOK_S: Final = 2.0
"""Ctrl-C is seen between two looks: the library's calls cannot be interrupted."""
DELIVERY_MS: Final = 120_000
"""Until an append is given up; long enough for a broker to start again."""
BATCH_BYTES: Final = 1_000_000
MESSAGE_BYTES_MAX: Final = 1_000_000_000
"""Of librdkafka, which counts before compression: the topic's own limit decides."""
_NO_ID: Final = "A" * 22
"""What a Kafka before 2.8 is shown with."""
_MAX_MESSAGE: Final = "max.message.bytes"


def _check_no_other_address(bootstrap: str, settings: Mapping[str, str]) -> None:
    """A properties file may be of another cluster, which would get the records. Raises
    MisuseError."""
    for name in ("bootstrap.servers", "metadata.broker.list"):
        other = settings.get(name, bootstrap)
        if other != bootstrap:
            raise MisuseError(
                f"the settings for Kafka at {bootstrap} name another address, {name}={other}; "
                "remove that line, or give that address",
                ErrorCode.INVALID_REQUEST,
            )


class Kafka:
    """A Kafka cluster: a `Source`, and a `Target`.

    Args:
        bootstrap: host:port,…
        settings: Of librdkafka, over ours.
        copy_id: Names this copy; two with one name and one target continue each other.
    """

    def __init__(self, bootstrap: str, settings: Mapping[str, str], copy_id: str = "") -> None:
        self._bootstrap = bootstrap
        _check_no_other_address(bootstrap, settings)
        self._settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap, **settings, "logger": _log,
        }  # fmt: skip
        self.copy_id = copy_id
        try:
            self._admin = AdminClient(dict(self._settings))
        except kafka.KafkaException as error:
            text = f"librdkafka refuses the settings for {self.name}: {error.args[0].str()}"
            raise MisuseError(text, ErrorCode.INVALID_REQUEST) from None
        self._producers: dict[str, Any] = {}
        self._asked_for: dict[str, str] = {}
        """New topics by what their names are to Kafka's metrics."""
        self._metadata = self._first_metadata()

    @property
    def name(self) -> str:
        return f"Kafka at {self._bootstrap}"

    @property
    def cluster_id(self) -> str:
        return str(self._metadata.cluster_id)

    @property
    def brokers(self) -> int:
        return len(self._metadata.brokers)

    def _first_metadata(self) -> Any:
        ends_at = monotonic() + CONNECT_S
        while True:
            try:
                return self._admin.list_topics(timeout=LOOK_S)
            except kafka.KafkaException as error:
                if error.args[0].code() not in PASSING or monotonic() >= ends_at:
                    raise failed(self.name, error.args[0]) from None

    def topics(self, patterns: Sequence[str]) -> list[Topic]:
        return self._described(matching(patterns, self.names(), self.name))

    def names(self) -> list[str]:
        """Of all topics but Kafka's own, as they are now."""
        self._metadata = asked(self.name, lambda: self._admin.list_topics(timeout=TIMEOUT_S))
        return sorted(name for name in self._metadata.topics if not name.startswith("__"))

    def find(self, topic: str) -> Topic | None:
        return self._described([topic])[0] if topic in self._metadata.topics else None

    def _described(self, names: Sequence[str]) -> list[Topic]:
        resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]

        def described() -> list[tuple[Any, str]]:
            configs = self._admin.describe_configs(resources)
            topics = self._admin.describe_topics(TopicCollection(list(names)))
            return [
                (configs[each].result(TIMEOUT_S), str(topics[each.name].result(TIMEOUT_S).topic_id))
                for each in resources
            ]

        found = asked(self.name, described)
        return [self._topic(name, *each) for name, each in zip(names, found, strict=True)]

    def _topic(self, name: str, entries: Any, topic_id: str) -> Topic:
        own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        partitions = self._metadata.topics[name].partitions
        return Topic(
            name=name,
            partitions=len(partitions),
            replicas=max(len(each.replicas) for each in partitions.values()),
            configs={key: str(e.value) for key, e in entries.items() if e.source == own},
            max_message_bytes=int(entries[_MAX_MESSAGE].value),
            topic_id="" if topic_id == _NO_ID else topic_id,
            inherited={key: str(e.value) for key, e in entries.items() if e.source != own},
        )

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        consumer = self._consumer()

        def watermarks(where: TopicPartition) -> Any:
            at = kafka.TopicPartition(where.topic, where.partition)
            return asked(self.name, lambda: consumer.get_watermark_offsets(at, timeout=TIMEOUT_S))

        try:
            return {where: Bounds(*watermarks(where)) for where in partitions}
        finally:
            consumer.close()

    def waiting(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the library's
        wanted = {kafka.TopicPartition(each.topic, each.partition): latest for each in partitions}

        def marks() -> dict[TopicPartition, int]:
            asked_for = self._admin.list_offsets(
                wanted, isolation_level=IsolationLevel.READ_UNCOMMITTED
            )
            return {
                TopicPartition(at.topic, at.partition): one.result(TIMEOUT_S).offset
                for at, one in asked_for.items()
            }

        high = asked(self.name, marks)
        # Asked afterwards: without an open transaction, it is not before the mark then.
        stable = self.bounds(high)
        return {w: at - stable[w].end for w, at in high.items() if at > stable[w].end}

    def read(self, starts: Mapping[TopicPartition, int]) -> Reader:
        return KafkaReader(self.name, self._consumer(), starts)

    def _consumer(self, group: str = "penstock-copy") -> Any:
        return kafka.Consumer(
            {
                **self._settings,
                "group.id": group,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "check.crcs": True,
            }
        )

    def group_offsets(self, group: str, topics: Iterable[str]) -> dict[TopicPartition, int]:
        """By a consumer that joins nothing. The admin client's call ends the process when a broker
        answers that it does not coordinate the group (librdkafka 2.16, `rd_kafka_cgrp_op`)."""
        wanted = [
            kafka.TopicPartition(topic, number)
            for topic in topics
            if topic in self._metadata.topics
            for number in self._metadata.topics[topic].partitions
        ]
        if not wanted:
            return {}
        consumer = self._consumer(group)
        try:
            found = asked(self.name, lambda: consumer.committed(wanted, timeout=TIMEOUT_S))
        finally:
            consumer.close()
        for each in found:
            if each.error is not None:
                raise failed(self.name, each.error)
        return {
            TopicPartition(each.topic, each.partition): each.offset
            for each in found
            if each.offset >= 0
        }

    def check(self, topic: Topic) -> str:
        """What is refused about a new topic, or ""."""
        other = self._asked_for.setdefault(topic.name.replace(".", "_"), topic.name)
        if other != topic.name:
            return f"its name collides with {other!r}: to Kafka's metrics, . and _ are the same"
        try:
            self._create(topic, validate_only=True)
        except ClusterError as error:
            return error.message
        return ""

    def _create(self, topic: Topic, *, validate_only: bool) -> None:
        new = NewTopic(
            topic.name,
            num_partitions=topic.partitions,
            replication_factor=min(topic.replicas, self.brokers),
            config=dict(topic.configs),
        )
        asked(
            self.name,
            lambda: self._admin.create_topics([new], validate_only=validate_only)[
                topic.name
            ].result(TIMEOUT_S),
        )

    def create(self, topic: Topic) -> None:
        self._create(topic, validate_only=False)
        ends_at = monotonic() + TIMEOUT_S
        while not getattr(self._metadata.topics.get(topic.name), "partitions", None):
            # The broker that created it knows it before the one that is asked here.
            if monotonic() >= ends_at:
                raise ClusterError(
                    f"{self.name}: topic {topic.name!r} was created {TIMEOUT_S:.0f} s ago, and is "
                    "not known there yet; see whether it runs, then the same command continues",
                    ErrorCode.UNKNOWN_TOPIC,
                )
            sleep(RETRY_S)
            self._metadata = asked(self.name, lambda: self._admin.list_topics(timeout=TIMEOUT_S))

    def alter(self, topic: str, configs: Mapping[str, str | None]) -> None:
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        for name, value in configs.items():
            how = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
            entry = ConfigEntry(name, value or "", incremental_operation=how)
            resource.add_incremental_config(entry)
        asked(
            self.name,
            lambda: self._admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S),
        )

    def append(self, where: TopicPartition, rows: Rows) -> KafkaAppending:
        return KafkaAppending(self.name, self._producer_of(where.topic), where, rows)

    def _producer_of(self, topic: str) -> Any:
        """One by topic: a batch must not be larger than the topic takes."""
        if topic not in self._producers:
            limit = self._described([topic])[0].max_message_bytes
            self._producers[topic] = kafka.Producer(
                {
                    **self._settings,
                    "enable.idempotence": True,
                    "acks": "all",
                    "linger.ms": 20,
                    "queue.buffering.max.messages": 1_000_000,
                    "batch.size": min(limit, BATCH_BYTES),
                    "message.max.bytes": MESSAGE_BYTES_MAX,
                    "message.timeout.ms": DELIVERY_MS,
                }
            )
        return self._producers[topic]

    def misfits(self, rows: Rows, topic: Topic) -> list[Misfit]:
        untimed = [
            Misfit(
                index,
                f"its timestamp is {at_ms}, which Kafka's clients cannot send: it means the "
                "present to them; leave the topic out",
            )
            for index, at_ms in enumerate(rows.timestamps_ms)
            if at_ms <= 0
        ]
        return untimed + misfits_of(rows, topic, kafka_limit)

    def progress(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Progress | None]:
        consumer = self._consumer(self.copy_id)
        try:
            wanted = [kafka.TopicPartition(each.topic, each.partition) for each in partitions]
            found = asked(self.name, lambda: consumer.committed(wanted, timeout=TIMEOUT_S))
        finally:
            consumer.close()
        return {
            TopicPartition(each.topic, each.partition): (
                Progress.parse(each.metadata) if each.offset >= 0 else None
            )
            for each in found
        }

    def store(self, progress: Mapping[TopicPartition, Progress]) -> None:
        offsets = [
            kafka.TopicPartition(w.topic, w.partition, p.target_next, p.serialise())
            for w, p in progress.items()
        ]
        self._commit(self.copy_id, offsets)

    def set_group(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Kafka refuses while the group has members."""
        self._commit(
            group, [kafka.TopicPartition(w.topic, w.partition, at) for w, at in offsets.items()]
        )

    def _commit(self, group: str, offsets: list[Any]) -> None:
        consumer = self._consumer(group)
        try:
            for each in asked(
                self.name, lambda: consumer.commit(offsets=offsets, asynchronous=False)
            ):
                if each.error is not None:
                    raise ClusterError(
                        f"{self.name}: group {group!r}, {each.topic}/{each.partition}: "
                        f"{each.error.str()}",
                        ErrorCode.INVALID_REQUEST,
                    )
        finally:
            consumer.close()
