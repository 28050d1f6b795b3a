"""What a driver asks the cluster, through the client's `Admin` (implements `OffsetsClient`).

Admin finds leaders and retries within its deadline; on top, `fetchOffset.numRetries` more
attempts for errors that pass, because a query must not end because an election took long. One
Admin per process and settings, kept: planner workers are used again for every batch.
"""

import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from penstock.client import EARLIEST, LATEST, Admin, Consumer, OffsetSpec, TopicDescription
from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.spark.boundary import ByTime, Edge, Query
from penstock.spark.data_loss import LogView
from penstock.spark.given import ClientSettings
from penstock.spark.options import (
    Assign,
    SourceOptions,
    Subscribe,
    SubscribePattern,
)

logger = logging.getLogger(__name__)
T = TypeVar("T")
COMMIT_TIMEOUT_MS: Final = 5_000
"""Timeout of each call of a commit to a group, which delays the query's trigger."""
_admins: dict[tuple[int, ClientSettings], Admin] = {}
_committers: dict[tuple[int, ClientSettings, str], Consumer] = {}


def cluster_of(options: SourceOptions) -> "ClusterOffsets":
    """The look-ups of these options, on this process's Admin for their client settings."""
    return ClusterOffsets(options)


def _admin_of(settings: ClientSettings) -> Admin:
    key = (os.getpid(), settings)
    if key not in _admins:
        _admins[key] = Admin(
            settings.bootstrap,
            connect_timeout_ms=settings.connect_timeout_ms,
            request_timeout_ms=settings.request_timeout_ms,
            # Retries are counted here (fetchOffset.numRetries), not there.
            unknown_topic_timeout_ms=500,
            **settings.files,
        )
    return _admins[key]


def forget_clients(settings: ClientSettings) -> None:
    """Closes this process's clients with these settings: they know a cluster that another one has
    replaced at its addresses."""
    pid = os.getpid()
    if (admin := _admins.pop((pid, settings), None)) is not None:
        admin.close()
    for key in [key for key in _committers if key[:2] == (pid, settings)]:
        _committers.pop(key).close()


def _committer_of(settings: ClientSettings, group_id: str) -> Consumer:
    """A consumer that reads nothing and joins nothing, kept like the Admin."""
    key = (os.getpid(), settings, group_id)
    if key not in _committers:
        _committers[key] = Consumer(
            settings.bootstrap,
            group_id=group_id,
            enable_auto_commit=False,
            connect_timeout_ms=min(settings.connect_timeout_ms, COMMIT_TIMEOUT_MS),
            request_timeout_ms=min(settings.request_timeout_ms, COMMIT_TIMEOUT_MS),
            unknown_topic_timeout_ms=500,
            **settings.files,
        )
    return _committers[key]


@dataclass(frozen=True, slots=True)
class ClusterOffsets:
    """Offset look-ups for one selection of partitions."""

    options: SourceOptions

    @property
    def admin(self) -> Admin:
        """This process's Admin for the options."""
        return _admin_of(self.options.client)

    def view(self, read_before: Iterable[str] = ()) -> LogView:
        """The selected partitions that exist, their ends, topic ids."""
        topics = self._retry(lambda: self._describe(read_before))
        self._check_cluster()
        partitions = [
            TopicPartition(name, p.partition)
            for name, topic in sorted(topics.items())
            for p in topic.partitions
        ]
        if isinstance(self.options.selection, Assign):
            partitions = [tp for tp in partitions if tp in self.options.selection.partitions]
        ends = self.offsets(dict.fromkeys(partitions, Edge.LATEST)) if partitions else {}
        return LogView(ends, {name: topic.topic_id for name, topic in topics.items()})

    def offsets(self, asked: Mapping[TopicPartition, Query]) -> dict[TopicPartition, int]:
        """The offset each query stands for."""
        specs: dict[TopicPartition, OffsetSpec | int] = {}
        known = {}
        for tp, query in asked.items():
            match query:
                case Edge.EARLIEST:
                    specs[tp] = EARLIEST
                case Edge.LATEST:
                    specs[tp] = LATEST
                case ByTime(timestamp_ms):
                    specs[tp] = timestamp_ms
                case int(offset):
                    known[tp] = offset
        if not specs:
            return known
        listed = self._retry(lambda: self.admin.list_offsets(specs))
        return known | {tp: found.offset for tp, found in listed.items()}

    def row_bytes(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        """Mean stored size of a record, of partitions that have any on a broker alive."""
        topics = sorted({tp.topic for tp in ends})
        sizes = {}
        for broker in self.admin.describe_logs(topics):  # not vital: without further attempts
            for log in broker.logs:
                records = log.log_end_offset - log.log_start_offset
                if records > 0:
                    sizes[TopicPartition(log.topic, log.partition)] = log.size_bytes / records
        return sizes

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits without membership, in one attempt of `COMMIT_TIMEOUT_MS` at most per call."""
        _committer_of(self.options.client, group_id).commit(offsets)

    def _check_cluster(self) -> None:
        """Another cluster's topics of the same names may look empty: executors would not notice."""
        named = self.options.client.cluster_id
        if not named or (seen := self._retry(self._cluster_id)) == named:
            return
        raise ClusterError(
            f"option penstock.cluster.id is {named!r}, but {self.options.client.bootstrap[0]} is "
            f"cluster {seen!r}: nothing was read",
            ErrorCode.CLUSTER_ID_MISMATCH,
        )

    def _cluster_id(self) -> str:
        return self.admin.cluster_id()  # of the Admin of now, which `_retry` may replace

    def _describe(self, read_before: Iterable[str]) -> dict[str, TopicDescription]:
        match self.options.selection:
            case SubscribePattern(pattern):
                listed = self.admin.describe_topics()
                found = {
                    name: topic
                    for name, topic in listed.items()
                    if not topic.internal and re.fullmatch(pattern, name)
                }
                missing = {name for name in read_before if re.fullmatch(pattern, name)}
                return found | self._by_name(missing - found.keys())
            case Subscribe(topics):
                wanted = set(topics)
            case Assign(partitions):
                wanted = {tp.topic for tp in partitions}
        try:
            return self.admin.describe_topics(sorted(wanted))
        except PenstockError as problem:
            if problem.code is not ErrorCode.UNKNOWN_TOPIC:
                raise
        # One of them is missing; what that means is not decided here. The others still count.
        return self._by_name(wanted)

    def _by_name(self, names: Iterable[str]) -> dict[str, TopicDescription]:
        """Those that exist. A name that one broker does not know is asked of all, as its list of
        all topics is not: that broker may be behind."""
        found: dict[str, TopicDescription] = {}
        for name in sorted(names):
            try:
                found |= self.admin.describe_topics([name])
            except PenstockError as problem:
                if problem.code is not ErrorCode.UNKNOWN_TOPIC:
                    raise
        return found

    def _retry(self, call: Callable[[], T]) -> T:
        left = self.options.offset_retries
        settings, is_replaced = self.options.client, False
        while True:
            try:
                return call()
            except PenstockError as problem:
                if problem.code is ErrorCode.CLUSTER_ID_MISMATCH:
                    forget_clients(settings)
                    if not settings.cluster_id and not is_replaced:
                        is_replaced = True
                        continue
                if not problem.retriable or left <= 0:
                    raise
                logger.warning("offset look-up failed, %d attempts left: %s", left, problem)
            left -= 1
            time.sleep(self.options.offset_retry_interval_ms / 1000)
