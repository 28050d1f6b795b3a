"""The stream reader's answers, trigger by trigger, against a cluster that is a few numbers.

Driven as Spark drives it: offsets go through JSON text, a restart is a new reader with the old
text. No Spark session; `test_spark_stream` runs the same on a real one.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode, MisuseError
from penstock.spark.batch import BatchReader
from penstock.spark.boundary import ByTime, Edge, Query
from penstock.spark.data_loss import DataLossError, LogView
from penstock.spark.lookup import selects
from penstock.spark.offsets import Concrete, decode
from penstock.spark.options import Selection, SourceOptions, SubscribePattern, parse
from penstock.spark.planning import ReadRange
from penstock.spark.stream import StreamReader

P0, P1, P2 = (TopicPartition("orders", i) for i in range(3))
OTHER = TopicPartition("other", 0)
ALL = ReadAllAvailable()
ALL_TOPICS = SubscribePattern(".*")


@dataclass
class SmallCluster:
    """Implements OffsetsClient. Record n of every partition has timestamp 1000 * n."""

    ends: dict[TopicPartition, int]
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=lambda: {"orders": "id-1"})
    selection: Selection = ALL_TOPICS
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    commits: list[tuple[str, dict[TopicPartition, int]]] = field(default_factory=list)
    refusal: Exception | None = None

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        self.commits.append((group_id, dict(offsets)))
        if self.refusal is not None:
            raise self.refusal
        self.committed |= offsets

    def view(self, read_before: Iterable[str] = ()) -> LogView:
        ends = {tp: end for tp, end in self.ends.items() if selects(self.selection, tp)}
        return LogView(ends, dict(self.topic_ids))

    def offsets(self, asked: Mapping[TopicPartition, Query]) -> dict[TopicPartition, int]:
        return {tp: self._offset(tp, query) for tp, query in asked.items()}

    def row_bytes(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        return dict.fromkeys(ends, 100.0)

    def _offset(self, tp: TopicPartition, query: Query) -> int:
        match query:
            case Edge.EARLIEST:
                return self.starts.get(tp, 0)
            case Edge.LATEST:
                return self.ends[tp]
            case ByTime(timestamp_ms):
                at = max(self.starts.get(tp, 0), -(-timestamp_ms // 1000))
                return at if at < self.ends[tp] else -1
        return query


def options_of(**changes: str) -> SourceOptions:
    base = {"penstock.bootstrap.servers": "a:1", "fetchOffset.retryIntervalMs": "0"}
    if not changes.keys() & {"assign", "subscribePattern"}:
        base["subscribe"] = "orders"
    return parse(base | changes)


class RunningQuery:
    """One query: its checkpoint's texts, and a reader that can be replaced by a new one."""

    def __init__(self, cluster: SmallCluster, **changes: str) -> None:
        self.cluster, self.options = cluster, options_of(**changes)
        cluster.selection = self.options.selection
        self.log: list[str] = []
        self.restart()

    def restart(self, *, available_now: bool = False) -> None:
        self.reader = StreamReader(self.options, lambda _: self.cluster)
        if available_now:
            self.reader.prepareForTriggerAvailableNow()

    @property
    def start(self) -> str:
        return self.log[-1] if self.log else json.dumps(self.reader.initialOffset())

    def trigger(self, limit: ReadLimit | None = None) -> list[ReadRange] | None:
        """The ranges of the next batch, None if there is none."""
        start = self.start
        limit = limit or self.reader.getDefaultReadLimit()
        end = json.dumps(self.reader.latestOffset(json.loads(start), limit))
        if end == start:
            return None
        self.log.append(end)
        return self.planned(len(self.log) - 1)

    def planned(self, batch: int) -> list[ReadRange]:
        """What batch number `batch` reads, planned (again) by the reader of now."""
        start = self.log[batch - 1] if batch else json.dumps(self.reader.initialOffset())
        tasks = self.reader.partitions(json.loads(start), json.loads(self.log[batch]))
        return sorted(r for task in tasks for r in task.value)


def span(tp: TopicPartition, lo: int, hi: int, topic_id: str = "id-1") -> ReadRange:
    return ReadRange(tp.topic, tp.partition, lo, hi, topic_id)


def test_a_topic_that_vanished_is_no_mistake_of_the_users_if_it_was_read_before() -> None:
    cluster = SmallCluster({P0: 10, OTHER: 5}, topic_ids={"orders": "id-1", "other": "id-2"})
    query = RunningQuery(cluster, subscribe="orders,other")
    query.trigger()
    cluster.ends = {OTHER: 6}
    with pytest.raises(DataLossError, match="orders/0 does not exist, or this user may not see"):
        query.trigger()
    query.log = ['{"from": {}, "ids": {}, "t": {"other/0": 5}, "v": 1}']
    with pytest.raises(ClusterError, match="option subscribe names topic orders, which does not"):
        query.trigger()


def test_a_stream_reads_what_arrives_and_nothing_twice() -> None:
    cluster = SmallCluster({P0: 5, P1: 0})
    query = RunningQuery(cluster, startingOffsets="earliest")
    assert query.trigger() == [span(P0, 0, 5)]
    assert query.trigger() is None
    cluster.ends = {P0: 7, P1: 3}
    assert query.trigger() == [span(P0, 5, 7), span(P1, 0, 3)]
    assert query.trigger() is None


def test_starting_latest_is_fixed_by_the_first_look_not_by_later_ones() -> None:
    cluster = SmallCluster({P0: 5})
    query = RunningQuery(cluster)
    query.reader.initialOffset()
    assert query.trigger() == []  # batch 0 runs even if empty; its end is concrete
    assert decode(json.loads(query.start)) == Concrete({P0: 5}, {P0: 5}, {"orders": "id-1"})
    cluster.ends = {P0: 9}
    query.restart()
    assert query.trigger() == [span(P0, 5, 9)]


def test_arrivals_between_two_calls_of_initial_offset_are_not_lost() -> None:
    cluster = SmallCluster({P0: 5})
    query = RunningQuery(cluster)
    first = query.reader.initialOffset()
    cluster.ends = {P0: 8}
    assert query.reader.initialOffset() == first
    query.trigger()
    cluster.ends = {P0: 10}
    assert query.trigger() == [span(P0, 8, 10)]


def test_the_starting_point_is_resolved_once_per_process() -> None:
    cluster = SmallCluster({P0: 5})
    query = RunningQuery(cluster)
    symbolic = query.reader.initialOffset()
    query.reader.latestOffset(symbolic, ALL)
    cluster.ends = {P0: 9}
    again = decode(query.reader.latestOffset(symbolic, ALL))
    assert again == Concrete({P0: 9}, {P0: 5}, {"orders": "id-1"})


@pytest.mark.parametrize(
    ("starting", "expected"),
    [
        ({"startingOffsets": "earliest"}, [span(P0, 2, 10), span(P1, 0, 10)]),
        ({"startingOffsets": '{"orders": {"0": 4, "1": -1}}'}, [span(P0, 4, 10)]),
        ({"startingTimestamp": "7500"}, [span(P0, 8, 10), span(P1, 8, 10)]),
        (
            {"startingOffsetsByTimestamp": '{"orders": {"0": 3000, "1": 9000}}'},
            [span(P0, 3, 10), span(P1, 9, 10)],
        ),
        (
            {"startingTimestamp": "99000", "startingOffsetsByTimestampStrategy": "latest"},
            [],
        ),
    ],
)
def test_a_replay_of_batch_zero_reads_exactly_the_same(
    starting: dict[str, str], expected: list[ReadRange]
) -> None:
    cluster = SmallCluster({P0: 10, P1: 10}, {P0: 2})
    query = RunningQuery(cluster, **starting)
    assert query.trigger() == expected
    cluster.ends = {P0: 50, P1: 50, P2: 50}
    query.restart()
    assert query.planned(0) == expected


def test_a_time_without_records_is_an_error_unless_told_otherwise() -> None:
    query = RunningQuery(SmallCluster({P0: 10}), startingTimestamp="99000")
    with pytest.raises(MisuseError, match="orders/0 has no record at or after 99000 ms"):
        query.trigger()


def test_new_partitions_begin_at_their_first_record_and_replay_so() -> None:
    cluster = SmallCluster({P0: 5})
    query = RunningQuery(cluster)
    query.trigger()
    cluster.ends = {P0: 5, P1: 3}
    assert query.trigger() == [span(P1, 0, 3)]
    cluster.ends = {P0: 6, P1: 9}
    query.restart()
    assert query.planned(1) == [span(P1, 0, 3)]
    assert query.trigger() == [span(P0, 5, 6), span(P1, 3, 9)]


def test_a_new_partition_whose_first_records_are_gone_is_a_loss() -> None:
    cluster = SmallCluster({P0: 5})
    query = RunningQuery(cluster)
    query.trigger()
    cluster.ends, cluster.starts = {P0: 5, P1: 30}, {P1: 20}
    with pytest.raises(DataLossError, match="orders/1 lost 20 records to retention"):
        query.trigger()
    tolerant = RunningQuery(cluster, failOnDataLoss="false")
    tolerant.log = list(query.log)
    assert tolerant.trigger() == [span(P1, 20, 30)]


def test_a_pattern_may_match_nothing_yet_and_misses_nothing_later() -> None:
    cluster = SmallCluster({}, topic_ids={})
    query = RunningQuery(cluster, subscribePattern="or.*")
    assert query.trigger() == []
    assert query.trigger() is None
    cluster.ends, cluster.topic_ids = {P0: 4}, {"orders": "id-1"}
    assert query.trigger() == [span(P0, 0, 4)]


def test_the_same_position_is_the_same_text_whatever_the_order_of_answers() -> None:
    cluster = SmallCluster({P1: 5, P0: 5})
    query = RunningQuery(cluster, startingOffsets="earliest")
    query.trigger()
    cluster.ends = {P0: 5, P1: 5}
    assert query.trigger() is None


def test_a_limit_of_rows_is_kept_and_everything_comes_in_the_end() -> None:
    cluster = SmallCluster({P0: 100, P1: 7})
    query = RunningQuery(cluster, startingOffsets="earliest", maxOffsetsPerTrigger="20")
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(20)
    seen: dict[int, list[int]] = {0: [], 1: []}
    while ranges := query.trigger():
        assert sum(r.size for r in ranges) <= 20
        for r in ranges:
            seen[r.partition] += range(r.lo, r.hi)
    assert seen == {0: list(range(100)), 1: list(range(7))}


def test_a_limit_of_bytes_counts_stored_sizes() -> None:
    query = RunningQuery(
        SmallCluster({P0: 100}), startingOffsets="earliest", maxBytesPerTrigger="1000"
    )
    assert query.reader.getDefaultReadLimit() == ReadMaxBytes(1000)
    assert query.trigger() == [span(P0, 0, 10)]


@pytest.mark.parametrize("code", [ErrorCode.PERMISSION_DENIED, ErrorCode.UNREACHABLE])
def test_a_limit_of_bytes_does_without_sizes_that_cannot_be_had(
    code: ErrorCode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("penstock.spark.stream.time.monotonic", lambda: now_s)
    asked = []

    class Silent(SmallCluster):
        def row_bytes(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
            asked.append(now_s)
            if len(asked) == 3:
                return super().row_bytes(ends)
            raise ClusterError("no sizes", code)

    query = RunningQuery(Silent({P0: 100}), startingOffsets="earliest", maxBytesPerTrigger="2000")
    assert query.trigger() == [span(P0, 0, 1)], "1 KiB each"
    assert query.trigger() == [span(P0, 1, 2)]
    assert asked == [1000.0], "a trigger does not wait for them again and again"
    for begin, end in ((2, 3), (3, 23), (23, 43)):
        now_s += 61
        assert query.trigger() == [span(P0, begin, end)]
    warnings = [one.message for one in caplog.records if one.levelname == "WARNING"]
    assert len(warnings) == 1, "said once"
    assert "maxBytesPerTrigger" in warnings[0]
    assert "no sizes" in warnings[0]


def test_all_available_overrides_the_limits() -> None:
    query = RunningQuery(
        SmallCluster({P0: 100}), startingOffsets="earliest", maxOffsetsPerTrigger="3"
    )
    assert query.trigger(ALL) == [span(P0, 0, 100)]


def test_a_minimum_of_rows_holds_a_trigger_back_but_not_batch_zero() -> None:
    cluster = SmallCluster({P0: 1})
    query = RunningQuery(cluster, startingOffsets="earliest", minOffsetsPerTrigger="10")
    assert query.reader.getDefaultReadLimit() == ReadMinRows(10)
    assert query.trigger() == [span(P0, 0, 1)]
    cluster.ends = {P0: 2}
    assert query.trigger() == [span(P0, 1, 2)]  # the pacer's first: nothing was waited for yet
    cluster.ends = {P0: 11}
    assert query.trigger() is None
    cluster.ends = {P0: 12}
    assert query.trigger() == [span(P0, 2, 12)]


def test_available_now_stops_at_the_end_it_saw_under_load() -> None:
    cluster = SmallCluster({P0: 50})
    query = RunningQuery(
        cluster, startingOffsets="earliest", maxOffsetsPerTrigger="20", minOffsetsPerTrigger="15"
    )
    query.reader.prepareForTriggerAvailableNow()
    read = []
    while ranges := query.trigger():
        read += ranges
        cluster.ends = {P0: cluster.ends[P0] + 1000, P1: 50}
    assert read == [span(P0, 0, 20), span(P0, 20, 40), span(P0, 40, 50)]
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    ranges = query.trigger() or []
    assert [(r.partition, r.lo) for r in ranges] == [(0, 50), (1, 0)]  # goes on where it ended
    assert sum(r.size for r in ranges) == 20


def test_available_now_from_latest_reads_nothing_and_goes_on_from_there() -> None:
    cluster = SmallCluster({P0: 30})
    query = RunningQuery(cluster)
    query.reader.prepareForTriggerAvailableNow()
    cluster.ends = {P0: 40}
    assert query.trigger() == []
    assert query.trigger() is None
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    assert query.trigger() == [span(P0, 30, 40)]


def test_available_now_from_a_time_behind_its_end_loses_nothing() -> None:
    cluster = SmallCluster({P0: 30})
    query = RunningQuery(cluster, startingTimestamp="35000")
    query.reader.prepareForTriggerAvailableNow()
    cluster.ends = {P0: 40}
    assert query.trigger() == []
    assert query.trigger() is None
    query.restart()
    assert query.trigger() == [span(P0, 35, 40)]


def test_retention_past_the_position_fails_the_query_or_is_skipped() -> None:
    cluster = SmallCluster({P0: 10})
    query = RunningQuery(cluster)
    query.trigger()
    cluster.ends, cluster.starts = {P0: 30}, {P0: 20}
    with pytest.raises(DataLossError, match="requested offset 10, available are 20 to 30"):
        query.trigger()
    tolerant = RunningQuery(cluster, failOnDataLoss="false")
    tolerant.log = query.log[:1]
    assert tolerant.trigger() == [span(P0, 20, 30)]


@pytest.mark.parametrize(
    "limit", [{"maxOffsetsPerTrigger": "10"}, {"maxBytesPerTrigger": "1000"}], ids=["rows", "bytes"]
)
def test_a_limit_is_not_spent_on_records_that_retention_has_deleted(
    limit: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    cluster = SmallCluster({P0: 10, P1: 5})
    query = RunningQuery(cluster, failOnDataLoss="false", **limit)
    query.trigger()
    cluster.ends, cluster.starts = {P0: 1_015, P1: 5}, {P0: 1_000, P1: 5}
    assert query.trigger() == [span(P0, 1_000, 1_010)]
    assert "orders/0 lost 990 records to retention" in caplog.text
    assert query.trigger() == [span(P0, 1_010, 1_015)]
    assert query.trigger() is None
    query.restart()
    assert query.planned(1) == [span(P0, 1_000, 1_010)]


def test_a_topic_that_vanished_fails_the_query_or_is_read_from_the_start_of_the_next() -> None:
    cluster = SmallCluster({P0: 10, P1: 10})
    query = RunningQuery(cluster)
    query.trigger()
    cluster.ends, cluster.topic_ids = {}, {}
    with pytest.raises(DataLossError, match=r"orders/0 does not exist.*1 more partition"):
        query.trigger()
    tolerant = RunningQuery(cluster, failOnDataLoss="false")
    tolerant.log = query.log[:1]
    assert tolerant.trigger() is None
    cluster.ends, cluster.topic_ids = {P0: 3}, {"orders": "id-2"}
    assert tolerant.trigger() == [span(P0, 0, 3, "id-2")]
    cluster.ends = {P0: 3, P1: 12}
    assert tolerant.trigger() == [span(P1, 0, 12, "id-2")], "not from where the old one was"


def test_a_topic_that_was_out_of_sight_is_read_on_from_its_position(
    caplog: pytest.LogCaptureFixture,
) -> None:
    looks = []

    class Watched(SmallCluster):
        def view(self, read_before: Iterable[str] = ()) -> LogView:
            looks.append(dict(self.ends))
            return super().view(read_before)

    ids = {"orders": "id-1", "other": "id-2"}
    cluster = Watched({P0: 10, OTHER: 5}, topic_ids=ids)
    query = RunningQuery(
        cluster, subscribe="orders,other", startingOffsets="earliest", failOnDataLoss="false"
    )
    query.trigger()
    cluster.ends, cluster.topic_ids = {OTHER: 6}, {"other": "id-2"}
    looks.clear()
    assert query.trigger() == [span(OTHER, 5, 6, "id-2")]
    assert len(looks) == 1 + query.options.offset_retries
    looks.clear()
    cluster.ends = {OTHER: 7}
    assert query.trigger() == [span(OTHER, 6, 7, "id-2")]
    assert len(looks) == 1, "it is not waited for in every trigger"
    warnings = [one.message for one in caplog.records if "orders/0" in one.message]
    assert len(warnings) == 1
    query.restart()
    cluster.ends, cluster.topic_ids = {P0: 12, OTHER: 7}, ids
    assert query.trigger() == [span(P0, 10, 12)]
    assert query.planned(2) == [span(OTHER, 6, 7, "id-2")]


@pytest.mark.parametrize("available_now", [False, True])
@pytest.mark.parametrize("end", [3, 15])
def test_a_topic_created_again_fails_the_query_or_is_read_from_its_start(
    end: int, available_now: bool
) -> None:
    cluster = SmallCluster({P0: 10})
    query = RunningQuery(cluster)
    query.trigger()
    cluster.ends, cluster.topic_ids = {P0: end}, {"orders": "id-2"}
    query.restart(available_now=available_now)
    with pytest.raises(DataLossError, match="deleted and created again"):
        query.trigger()
    tolerant = RunningQuery(cluster, failOnDataLoss="false")
    tolerant.log = query.log[:1]
    tolerant.restart(available_now=available_now)
    assert tolerant.trigger() == [span(P0, 0, end, "id-2")]
    assert tolerant.trigger() is None
    tolerant.restart()
    assert tolerant.planned(1) == [span(P0, 0, end, "id-2")]


def test_a_replay_over_a_topic_created_again_reads_nothing_of_the_new_one() -> None:
    cluster = SmallCluster({P0: 10})
    query = RunningQuery(cluster, startingOffsets="earliest")
    query.trigger()
    cluster.ends, cluster.topic_ids = {P0: 15}, {"orders": "id-2"}
    query.restart()
    with pytest.raises(DataLossError, match="deleted and created again"):
        query.planned(0)
    tolerant = RunningQuery(cluster, startingOffsets="earliest", failOnDataLoss="false")
    tolerant.log = query.log[:1]
    assert tolerant.planned(0) == []


@pytest.mark.parametrize("available_now", [False, True])
def test_a_log_that_ends_before_the_position_fails_the_query_or_goes_on_from_its_end(
    available_now: bool,
) -> None:
    cluster = SmallCluster({P0: 10})
    query = RunningQuery(cluster)
    query.trigger()
    cluster.ends = {P0: 6}
    query.restart(available_now=available_now)
    with pytest.raises(
        DataLossError, match="ends before the query's position: requested offset 10"
    ):
        query.trigger()
    tolerant = RunningQuery(cluster, failOnDataLoss="false")
    tolerant.log = query.log[:1]
    tolerant.restart(available_now=available_now)
    assert tolerant.trigger() == []
    cluster.ends = {P0: 8}
    tolerant.restart(available_now=available_now)
    assert tolerant.trigger() == [span(P0, 6, 8)]


def test_a_loss_seen_once_is_looked_at_again_before_it_is_believed() -> None:
    class Flickering(SmallCluster):
        looks = 0

        def view(self, read_before: Iterable[str] = ()) -> LogView:
            view = super().view(read_before)
            Flickering.looks += 1
            return LogView({P0: 3}, view.topic_ids) if Flickering.looks == 2 else view

    query = RunningQuery(Flickering({P0: 10}))
    query.trigger()
    assert query.trigger() is None
    assert Flickering.looks == 3


def test_a_replay_whose_end_is_gone_is_a_loss() -> None:
    cluster = SmallCluster({P0: 10})
    query = RunningQuery(cluster, startingOffsets="earliest")
    query.trigger()
    cluster.ends = {P0: 6}
    query.restart()
    with pytest.raises(DataLossError, match="requested offset 10, available are 0 to 6"):
        query.planned(0)
    tolerant = RunningQuery(cluster, startingOffsets="earliest", failOnDataLoss="false")
    tolerant.log = list(query.log)
    assert tolerant.planned(0) == [span(P0, 0, 6)]


@pytest.mark.parametrize(
    ("before", "after", "option"),
    [
        ({"subscribe": "orders,other"}, {"subscribe": "orders"}, "subscribe"),
        ({"subscribePattern": "o.*"}, {"subscribePattern": "or.*"}, "subscribePattern"),
        (
            {"assign": '{"orders": [0], "other": [0]}'},
            {"assign": '{"orders": [0]}'},
            "assign",
        ),
    ],
)
def test_a_topic_taken_out_of_the_options_is_named_or_left_where_it_is(
    before: dict[str, str], after: dict[str, str], option: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = SmallCluster({P0: 10, OTHER: 5}, topic_ids={"orders": "id-1", "other": "id-2"})
    query = RunningQuery(cluster, **before, startingOffsets="earliest")
    query.trigger()

    def restart(**changed: str) -> None:
        query.options = options_of(**changed, startingOffsets="earliest")
        cluster.selection = query.options.selection
        query.restart()

    restart(**after)
    words = f"other/0 is no longer in the option {option}, but the checkpoint reads it: put it back"
    for ask in (query.trigger, lambda: query.planned(0)):
        with pytest.raises(MisuseError, match=words):
            ask()
    restart(**after, failOnDataLoss="false")
    assert query.planned(0) == [span(P0, 0, 10)]
    cluster.ends[P0] = 12
    assert query.trigger() == [span(P0, 10, 12)]
    assert f"other/0 is no longer in the option {option}" in caplog.text
    assert "may not see" not in caplog.text
    cluster.ends[OTHER] = 8
    restart(**before)
    assert query.trigger() == [span(OTHER, 5, 8, "id-2")], "put back, it goes on"


class Blinking(SmallCluster):
    """Does not see anything for the next `misses` looks."""

    misses = 0

    def view(self, read_before: Iterable[str] = ()) -> LogView:
        self.misses -= 1
        return LogView({}, {}) if self.misses >= 0 else super().view(read_before)


@pytest.mark.parametrize("tolerant", ["true", "false"])
def test_a_replay_looks_again_before_it_believes_that_its_topic_is_gone(tolerant: str) -> None:
    cluster = Blinking({P0: 10, P1: 3})
    query = RunningQuery(cluster, startingOffsets="earliest", failOnDataLoss=tolerant)
    query.trigger()
    cluster.ends = {P0: 25, P1: 3}
    query.trigger()
    query.restart()
    cluster.misses = 1
    assert query.planned(1) == [span(P0, 10, 25)]
    query.restart()
    cluster.misses = 1 + query.options.offset_retries
    with pytest.raises(DataLossError, match=r"orders/0 .* at offset 10; this batch was going to"):
        query.planned(1)
    cluster.ends, cluster.topic_ids = {P1: 2}, {"orders": "id-2"}
    query.options = options_of(startingOffsets="earliest", failOnDataLoss="false")
    query.restart()
    assert query.planned(1) == [], "another id proves that the records are gone"


def test_available_now_reads_a_topic_that_its_first_look_missed() -> None:
    cluster = Blinking({P0: 10})
    query = RunningQuery(cluster, startingOffsets="earliest", maxOffsetsPerTrigger="10")
    query.trigger()
    cluster.ends = {P0: 25}
    cluster.misses = 1
    query.restart(available_now=True)
    read = []
    while ranges := query.trigger():
        read += ranges
        cluster.ends = {P0: cluster.ends[P0] + 1000}
    assert read == [span(P0, 10, 20), span(P0, 20, 25)], "to where it ended when it was seen"


def test_a_replay_that_reads_nothing_of_a_topic_out_of_sight_does_without_it() -> None:
    cluster = SmallCluster({P0: 10, P1: 3})
    query = RunningQuery(cluster, startingOffsets="earliest", failOnDataLoss="false")
    query.trigger()
    cluster.ends = {P0: 25, P1: 3}
    query.trigger()
    cluster.ends = {P0: 25}
    query.restart()
    assert query.planned(1) == [span(P0, 10, 25)]


def test_starting_offsets_behind_the_end_are_refused_or_moved() -> None:
    cluster = SmallCluster({P0: 10})
    given = '{"orders": {"0": 99}}'
    with pytest.raises(DataLossError, match="requested offset 99, available are 0 to 10"):
        RunningQuery(cluster, startingOffsets=given).trigger()
    tolerant = RunningQuery(cluster, startingOffsets=given, failOnDataLoss="false")
    assert tolerant.trigger() == []
    cluster.ends = {P0: 12}
    assert tolerant.trigger() == [span(P0, 10, 12)]


def test_a_topic_that_never_was_is_the_users_mistake() -> None:
    with pytest.raises(ClusterError, match="option subscribe names topic orders, which does not"):
        RunningQuery(SmallCluster({})).trigger()
    with pytest.raises(ClusterError, match="option assign names orders/7, which does not exist"):
        RunningQuery(SmallCluster({P0: 1}), assign='{"orders": [0, 7]}').trigger()


def test_a_partition_added_at_a_restart_that_never_was_is_the_users_mistake() -> None:
    cluster = SmallCluster({P0: 1})
    query = RunningQuery(cluster, assign='{"orders": [0]}')
    query.trigger()
    query.options = options_of(assign='{"orders": [0, 7]}')
    cluster.selection = query.options.selection
    query.restart()
    with pytest.raises(ClusterError, match="option assign names orders/7, which does not") as ended:
        query.trigger()
    assert ended.value.code is ErrorCode.UNKNOWN_PARTITION
    cluster.ends = {}
    with pytest.raises(DataLossError, match="orders/0 does not exist, or this user may not see"):
        query.trigger()


def test_a_checkpoint_of_another_source_is_refused() -> None:
    query = RunningQuery(SmallCluster({P0: 1}))
    query.log = ['{"orders": {"0": 5}}']
    with pytest.raises(MisuseError, match="not Penstock's"):
        query.trigger()


def test_the_newest_offset_is_reported_once_it_was_seen() -> None:
    query = RunningQuery(
        SmallCluster({P0: 9}), startingOffsets="earliest", maxOffsetsPerTrigger="4"
    )
    assert query.reader.reportLatestOffset() is None
    query.trigger()
    assert decode(query.reader.reportLatestOffset()) == Concrete({P0: 9})


# --- batch


def batch_ranges(cluster: SmallCluster, **changes: str) -> list[ReadRange]:
    options = options_of(**changes)
    cluster.selection = options.selection
    reader = BatchReader(options, lambda _: cluster)
    return sorted(r for task in reader.partitions() for r in task.value)


def test_a_batch_reads_all_by_default() -> None:
    cluster = SmallCluster({P0: 10, P1: 4}, {P0: 3})
    assert batch_ranges(cluster) == [span(P0, 3, 10), span(P1, 0, 4)]


def test_a_batch_reads_between_its_boundaries() -> None:
    cluster = SmallCluster({P0: 10, P1: 10})
    given = batch_ranges(
        cluster,
        startingOffsets='{"orders": {"0": 2, "1": -2}}',
        endingOffsets='{"orders": {"0": 5, "1": -1}}',
    )
    assert given == [span(P0, 2, 5), span(P1, 0, 10)]
    times = batch_ranges(cluster, startingTimestamp="3000", endingTimestamp="6000")
    assert times == [span(P0, 3, 6), span(P1, 3, 6)]
    open_end = batch_ranges(cluster, startingTimestamp="8000", endingTimestamp="77000")
    assert open_end == [span(P0, 8, 10), span(P1, 8, 10)]
    crossed = batch_ranges(cluster, startingTimestamp="8000", endingTimestamp="2000")
    assert crossed == []


@pytest.mark.parametrize(
    ("option", "expected"), [("endingTimestamp", [span(P0, 0, 10)]), ("startingTimestamp", [])]
)
def test_records_that_arrive_while_a_batch_looks_up_a_time_are_no_loss(
    option: str, expected: list[ReadRange]
) -> None:
    class Busy(SmallCluster):
        def offsets(self, asked: Mapping[TopicPartition, Query]) -> dict[TopicPartition, int]:
            if any(isinstance(query, ByTime) for query in asked.values()):
                self.ends = {P0: 20}
            return super().offsets(asked)

    given: dict[str, Any] = {option: "15000"}
    assert batch_ranges(Busy({P0: 10}), **given) == expected


def test_a_batch_refuses_offsets_that_are_not_there() -> None:
    cluster = SmallCluster({P0: 10}, {P0: 5})
    below: dict[str, Any] = {"startingOffsets": '{"orders": {"0": 1}}'}
    beyond: dict[str, Any] = {"endingOffsets": '{"orders": {"0": 40}}'}
    with pytest.raises(DataLossError, match="requested offset 1, available are 5 to 10"):
        batch_ranges(cluster, **below)
    with pytest.raises(DataLossError, match="requested offset 40, available are 5 to 10"):
        batch_ranges(cluster, **beyond)
    tolerant = batch_ranges(cluster, failOnDataLoss="false", **below, **beyond)
    assert tolerant == [span(P0, 5, 10)]
    with pytest.raises(MisuseError, match="would end at 6, before its start"):
        batch_ranges(
            cluster,
            startingOffsets='{"orders": {"0": 8}}',
            endingOffsets='{"orders": {"0": 6}}',
        )


def test_an_assigned_batch_reads_only_those_partitions() -> None:
    cluster = SmallCluster({P0: 10, P1: 10})
    assert batch_ranges(cluster, assign='{"orders": [1]}') == [span(P1, 0, 10)]


def test_a_batch_takes_the_sizes_of_tasks_from_its_options() -> None:
    options = options_of(minPartitions="4")
    reader = BatchReader(options, lambda _: SmallCluster({P0: 8, P1: 8}))
    assert [len(task.value) for task in reader.partitions()] == [1, 1, 1, 1]


# ---------------------------------------------------------------- groupId


def test_a_group_hears_of_the_end_of_a_batch_once_it_is_done() -> None:
    cluster = SmallCluster({P0: 5, P1: 0})
    query = RunningQuery(cluster, startingOffsets="earliest", groupId="etl")
    query.trigger()
    assert cluster.commits == [], "batch 0 is planned, not done"
    assert query.trigger() is None
    assert cluster.commits == [("etl", {P0: 5, P1: 0})]
    cluster.ends = {P0: 5, P1: 2}
    query.trigger()
    query.reader.commit(json.loads(query.log[0]))  # as Spark does
    assert len(cluster.commits) == 1, "what it has heard it is not told again"
    query.restart()
    query.trigger()
    assert cluster.commits[1:] == [("etl", {P0: 5, P1: 2})], "and once more after a restart"


def test_a_group_hears_nothing_of_the_offsets_of_a_topic_that_was_replaced() -> None:
    cluster = SmallCluster({P0: 5, P1: 3})
    query = RunningQuery(cluster, startingOffsets="earliest", groupId="etl", failOnDataLoss="false")
    query.trigger()
    cluster.topic_ids = {"orders": "id-2"}
    query.trigger()
    assert cluster.commits == []


def test_without_a_group_nobody_is_told() -> None:
    cluster = SmallCluster({P0: 5})
    query = RunningQuery(cluster, startingOffsets="earliest", groupIdPrefix="etl")
    query.trigger()
    query.trigger()
    query.reader.commit(json.loads(query.log[0]))
    assert cluster.commits == []


def test_offsets_come_from_the_checkpoint_and_never_from_the_group() -> None:
    cluster = SmallCluster({P0: 5}, committed={P0: 4})
    query = RunningQuery(cluster, startingOffsets="earliest", groupId="etl")
    assert query.trigger() == [span(P0, 0, 5)]


@pytest.mark.parametrize(
    ("refusal", "advice"),
    [
        (ClusterError("it has 2 members", ErrorCode.GROUP_NOT_EMPTY), "that no consumer uses"),
        (ClusterError("below 9", ErrorCode.OFFSET_WENT_BACK), "penstock group reset"),
        (ClusterError("silence", ErrorCode.UNREACHABLE), "trying again every 30 s"),
        (ValueError("a defect"), "trying again every 30 s"),
    ],
)
def test_a_group_that_cannot_be_told_is_a_warning_and_no_failure(
    refusal: Exception,
    advice: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("penstock.spark.group.time.monotonic", lambda: now_s)
    cluster = SmallCluster({P0: 5}, refusal=refusal)
    query = RunningQuery(cluster, startingOffsets="earliest", groupId="etl")
    query.trigger()
    for _ in range(3):
        assert query.trigger() is None
    assert len(cluster.commits) == 1, "triggers do not wait for a group again and again"
    (warning,) = caplog.records
    assert (
        "cannot commit this query's progress to group etl, the query continues" in warning.message
    )
    assert str(refusal) in warning.message
    assert advice in warning.message
    now_s += 31
    query.trigger()
    assert len(cluster.commits) == 2
    assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 1, "said once"
    cluster.refusal = None
    now_s += 31
    query.trigger()
    assert cluster.committed == {P0: 5}


def test_a_batch_query_refuses_a_group() -> None:
    with pytest.raises(MisuseError, match="option groupId is for streams"):
        BatchReader(options_of(groupId="etl"), lambda _: SmallCluster({P0: 5}))
