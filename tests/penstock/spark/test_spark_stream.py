"""Streaming reads on a real Spark session and a real cluster: exactly once, whatever happens."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from support.cluster import Cluster
from support.waiting import wait_until

from penstock.client import Consumer, Producer, Transaction
from penstock.core.types import TopicPartition
from penstock.errors import PenstockError
from penstock.spark.progress import offsets_behind_latest

if TYPE_CHECKING:
    from .conftest import Bench, MakeLoad, MakeRun, Run

pytestmark = pytest.mark.spark
EARLIEST = {"startingOffsets": "earliest"}


def without_gaps(offsets: list[int]) -> bool:
    return offsets == list(range(offsets[0], offsets[0] + len(offsets)))


def error_of_run(run: "Run") -> str:
    with pytest.raises(PySparkException) as caught:
        run.available_now()
    return str(caught.value)


def forget_commit(checkpoint: Path, batch: int) -> None:
    """As if the driver had died before it logged that the batch was done."""
    for name in (f"{batch}", f".{batch}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)


def test_restarts_go_on_where_the_last_run_ended(bench: "Bench", run: "MakeRun") -> None:
    bench.create(2)
    query = run(**EARLIEST)
    expected = []
    for round_ in range(2):
        for partition in (0, 1):
            values = [f"{round_}-{partition}-{i}" for i in range(50)]
            bench.send(*values, partition=partition)
            expected += values
        query.available_now()
    assert sorted(query.values()) == sorted(expected)
    query.available_now()
    assert len(query.rows()) == len(expected)


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_replay_of_batch_zero_reads_the_same_records(
    bench: "Bench", run: "MakeRun", starting: str
) -> None:
    bench.create(2)
    bench.send("before-0", "before-1", partition=0)
    query = run(startingOffsets=starting)
    query.available_now()
    bench.send("after", partition=1)
    first = query.batches[0]
    forget_commit(query.checkpoint, 0)
    query.batches.clear()
    query.available_now()
    assert query.batches[0] == first  # though the cluster has more now
    assert query.values() == [bytes(row.value).decode() for row in first[1]] + ["after"]
    if starting == "latest":
        assert first == (0, [])


def test_a_stream_from_latest_has_no_gaps_while_records_arrive(
    bench: "Bench", run: "MakeRun", load: "MakeLoad"
) -> None:
    bench.create(2)
    sending = load([0, 1], 0.002)
    wait_until(lambda: len(sending.acknowledged) > 20, what="records arrive")
    query = run()
    running = query.start()
    try:
        wait_until(lambda: len(query.rows()) > 50, what="the stream reads")
    finally:
        running.stop()
    known = len(sending.acknowledged)
    wait_until(lambda: len(sending.acknowledged) > known + 20, what="more arrive in between")
    acknowledged = sending.stop()
    query.available_now()
    assert all(without_gaps(offsets) for offsets in query.offsets().values())
    for partition, offsets in query.offsets().items():
        # Each from its own latest offset: the brokers are asked one after the other.
        sent = acknowledged[partition::2]
        assert offsets[0] > 0
        assert query.values(partition) == sent[-len(offsets) :]


def test_available_now_ends_under_load_and_the_next_run_reads_on(
    bench: "Bench", run: "MakeRun", load: "MakeLoad"
) -> None:
    bench.create(2)
    for partition in (0, 1):
        bench.send(*(f"old-{partition}-{i}" for i in range(60)), partition=partition)
    sending = load([0, 1], 0.002)
    query = run(**EARLIEST, maxOffsetsPerTrigger="50")
    query.available_now()
    assert all(len(rows) <= 50 for _, rows in query.batches)
    read = len(query.rows())
    assert read >= 120
    wait_until(lambda: 120 + len(sending.acknowledged) > read, what="more than it read is there")
    acknowledged = sending.stop()
    query.available_now()
    assert all(offsets == list(range(len(offsets))) for offsets in query.offsets().values())
    assert len(query.rows()) == 120 + len(acknowledged)


def test_the_limit_of_a_trigger_is_kept_and_progress_shows_the_backlog(
    bench: "Bench", run: "MakeRun"
) -> None:
    bench.create(3)
    bench.send(*map(str, range(95)), partition=0)
    bench.send("a", "b", partition=1)
    query = run(**EARLIEST, maxOffsetsPerTrigger="40")
    ended = query.available_now()
    assert [len(rows) for _, rows in query.batches] == [40, 40, 17]
    assert {row.partition for row in query.batches[0][1]} == {0, 1}
    progress = ended.recentProgress
    assert [p.numInputRows for p in progress if p.numInputRows] == [40, 40, 17]
    behind = [offsets_behind_latest(p.sources[0].endOffset, p.sources[0].latestOffset)
              for p in progress if p.numInputRows]  # fmt: skip
    assert [b.total for b in behind if b] == [57, 17, 0]


def test_new_partitions_are_read_from_their_first_record(bench: "Bench", run: "MakeRun") -> None:
    topic = bench.create(1)
    bench.send("p0")
    query = run()  # from latest: what is old is not read, what is new is
    running = query.start()
    try:
        wait_until(lambda: query.batches, what="batch 0 ran")
        bench.admin.create_partitions(topic, 3)
        bench.send("new-1", partition=1)
        bench.send("new-2", partition=2)
        bench.send("more-0", partition=0)
        wait_until(lambda: len(query.rows()) >= 3, what="all partitions are read")
    finally:
        running.stop()
    assert sorted(query.values()) == ["more-0", "new-1", "new-2"]


def test_killing_the_leader_neither_loses_nor_repeats_a_record(
    bench: "Bench", run: "MakeRun", load: "MakeLoad", cluster: Cluster
) -> None:
    topic = bench.create(2, 3, min_insync_replicas="2")
    query = run(**EARLIEST)
    running = query.start()
    sending = load([0, 1])
    killed = cluster.leader(topic, 0)
    try:
        wait_until(lambda: len(query.rows()) > 20, what="the stream reads")
        cluster.brokers[killed].kill()
        cluster.wait_leader_is_not(topic, 0, killed)
        known = len(sending.acknowledged)
        wait_until(lambda: len(sending.acknowledged) > known + 100, what="writes go on")
        acknowledged = sending.stop()
        wait_until(
            lambda: len(query.rows()) >= len(acknowledged) or running.exception(),
            what="all is read",
            timeout_s=60,
        )
        assert running.exception() is None
    finally:
        running.stop()
        cluster.brokers[killed].restart()
        cluster.wait_in_sync(topic)
    assert sorted(query.values()) == sorted(acknowledged)
    assert all(offsets == list(range(len(offsets))) for offsets in query.offsets().values())


def test_records_deleted_before_they_were_read_fail_the_query_or_are_skipped(
    bench: "Bench", run: "MakeRun"
) -> None:
    topic = bench.create()
    bench.send("0")
    query = run(**EARLIEST)
    query.available_now()
    for i in range(1, 10):
        bench.send(str(i))
    bench.admin.delete_records({TopicPartition(topic, 0): 6})
    message = error_of_run(query)
    assert f"{topic}/0 lost 5 records to retention: requested offset 1, available are 6 to 10" in (
        message
    )
    assert "failOnDataLoss" in message
    query.options["failOnDataLoss"] = "false"
    query.available_now()
    assert query.values() == ["0", "6", "7", "8", "9"]


def test_a_batch_never_ends_past_the_last_stable_offset(bench: "Bench", run: "MakeRun") -> None:
    topic = bench.create(2)
    where = TopicPartition(topic, 0)
    bench.send("before")
    query = run(**EARLIEST)
    patient: dict[str, Any] = {"transactional_id": f"of-{topic}", "transaction_timeout_ms": 900_000}
    with Producer(bench.cluster.bootstrap, **patient) as held:

        def open_one(value: str) -> Transaction:
            transaction = held.transaction()
            transaction.begin()
            transaction.send(topic, value.encode(), partition=0)
            held.flush(120)
            return transaction

        first = open_one("held")
        bench.send("behind")
        bench.send("beside", partition=1)
        seen = bench.admin.partition_transactions(where)
        assert (seen.last_stable_offset, seen.high_watermark) == (1, 3)
        progress = query.available_now().lastProgress
        assert progress is not None
        [source] = progress.sources
        assert query.offsets() == {0: [0], 1: [0]}
        ends = json.loads(source.endOffset)["t"]
        assert ends == {f"{topic}/0": 1, f"{topic}/1": 1}
        behind = offsets_behind_latest(source.endOffset, source.latestOffset)
        assert behind is not None
        assert behind.total == 0, "nobody may read the records behind it"
        assert bench.values() == ["before", "beside"], "nor does a bounded read"
        first.commit(wait_visible=True)
        second = open_one("aborted")
        bench.send("last")
        query.available_now()
        assert query.values() == ["before", "beside", "held", "behind"]
        running = query.start()
        try:
            bench.send("beside the second", partition=1)
            wait_until(lambda: "beside the second" in query.values(), what="it reads on beside it")
            assert "last" not in query.values()
            second.abort()
            wait_until(lambda: "last" in query.values(), what="the abort lets it go on")
        finally:
            running.stop()
    expected = ["before", "held", "behind", "last", "beside", "beside the second"]
    assert sorted(query.values()) == sorted(expected)
    assert bench.values() == expected


def test_a_topic_that_vanished_fails_the_query_and_a_new_one_is_told_apart(
    bench: "Bench", run: "MakeRun"
) -> None:
    topic = bench.create()
    bench.send("old")
    query = run(**EARLIEST, **{"fetchOffset.numRetries": "1"})
    query.available_now()
    bench.admin.delete_topic(topic)
    wait_until(
        lambda: all(bench.cluster.topic(topic, at) is None for at in bench.cluster.brokers),
        what="no broker knows the topic",
    )
    message = error_of_run(query)
    assert f"{topic}/0 does not exist, or this user may not see it any more" in message
    assert "the query was at offset 1" in message
    bench.create()
    with Producer(bench.cluster.bootstrap) as bench.producer:  # the other one fails a batch first
        bench.send("new-0", "new-1")
    message = error_of_run(query)
    assert f"{topic}/0 was deleted and created again" in message
    assert "the query was at offset 1 of the old one" in message
    query.options["failOnDataLoss"] = "false"
    query.available_now()
    assert query.values() == ["old", "new-0", "new-1"]


def test_a_stream_without_its_topic_says_so(bench: "Bench", run: "MakeRun") -> None:
    message = error_of_run(run(**{"fetchOffset.numRetries": "0"}))
    assert f"option subscribe names topic {bench.topic}, which does not exist" in message


def test_a_checkpoint_holds_the_documented_text(bench: "Bench", run: "MakeRun") -> None:
    topic = bench.create()
    topic_id = bench.admin.describe_topics([topic])[topic].topic_id
    bench.send("x", "y")
    query = run(**EARLIEST)
    query.available_now()
    logged = (query.checkpoint / "offsets" / "0").read_text().splitlines()[-1]
    assert logged == json.dumps(
        {"from": {f"{topic}/0": 0}, "ids": {topic: topic_id}, "t": {f"{topic}/0": 2}, "v": 1}
    )


def test_a_group_shows_how_far_a_query_is(bench: "Bench", run: "MakeRun") -> None:
    topic = bench.create(2)
    bench.send("a", "b", "c", partition=0)
    query = run(**EARLIEST, groupId=f"etl-{topic}", maxOffsetsPerTrigger="2")
    query.available_now()

    def progress() -> dict[int, tuple[int | None, int | None]]:
        try:
            lag = bench.admin.group_lag(f"etl-{topic}")
        except PenstockError:
            return {}  # there is no such group yet
        return {tp.partition: (seen.committed, seen.records) for tp, seen in lag.items()}

    running = query.start()
    try:
        # It is told at once, or half a minute after a commit that took too long.
        wait_until(
            lambda: progress() == {0: (3, 0), 1: (0, 0)}, what="the group hears", timeout_s=120
        )
        bench.send("d", partition=1)
        wait_until(
            lambda: progress().get(1) == (1, 0),
            what="the group hears of the last batch though no other follows",
            timeout_s=120,
        )
    finally:
        running.stop()
    assert sorted(query.values()) == ["a", "b", "c", "d"]


def test_a_group_with_members_is_left_alone_and_the_query_goes_on(
    bench: "Bench", run: "MakeRun"
) -> None:
    topic = bench.create()
    bench.send("a", "b")
    group = f"live-{topic}"
    with Consumer(bench.cluster.bootstrap, group_id=group, enable_auto_commit=False) as consumer:
        consumer.subscribe(topic)
        wait_until(lambda: consumer.poll(0.1) or consumer.assignment(), what="it is a member")
        query = run(**EARLIEST, groupId=group)
        query.available_now()
        assert query.values() == ["a", "b"]
        assert bench.admin.describe_group(group).offsets == {}
        assert len(bench.admin.describe_group(group).members) == 1


def test_a_batch_read_with_a_group_is_refused(bench: "Bench") -> None:
    bench.create()
    with pytest.raises(PySparkException, match="option groupId is for streams"):
        bench.values(groupId="etl")
