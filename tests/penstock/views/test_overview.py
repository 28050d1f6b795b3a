"""The sentence on top: each thing that can be wrong, and that the worst one is named."""

from dataclasses import replace

import pytest

from penstock.client import (
    BlockingTransaction,
    BrokerDescription,
    ClusterDescription,
    LogDescription,
    MoveDescription,
    MoveState,
    TopicPartition,
)
from penstock.views import overview, topics
from penstock.views.answers import Answer, Logs
from penstock.views.cells import Column
from penstock.views.overview import ClusterAnswers, broker_table, explain
from penstock.views.shortfalls import Shortfall

BROKERS = tuple(BrokerDescription(one, "h", 9092, "", alive=True) for one in range(3))
CLUSTER = ClusterDescription(
    "id", 1, 1, controller_reachable=True, brokers=BROKERS, topics=1, partitions=6,
    offline_partitions=0, under_replicated_partitions=0, under_min_isr_partitions=0,
)  # fmt: skip
DISK = LogDescription(0, (), 50, 100, disk_reserve_bytes=10)
FINE = ClusterAnswers(
    cluster=Answer(CLUSTER),
    logs=Answer(Logs(1.0, {one: replace(DISK, broker_id=one) for one in range(3)})),
    short=Answer(()),
    blocking=Answer([]),
)

NEARLY_FULL = replace(FINE, logs=Answer(Logs(1.0, {2: replace(DISK, disk_free_bytes=19)})))
"""Twice the reserve has to be free for copies."""
MOVE = MoveDescription(
    where=TopicPartition("flights", 3), topic_id="", state=MoveState.COPYING, reason=None, leader=0,
    replicas=(0, 1), isr=(0, 1), target=(0, 2), adding=(2,), dropping=(), damaged=(),
    waiting_for="", copies=(),
)  # fmt: skip


def short(kind: str) -> Answer[tuple[Shortfall, ...]]:
    return Answer((Shortfall(kind, "flights", 0, (0,), (0, 1), 2),))


def test_all_is_well() -> None:
    why = explain(FINE)
    assert (why.tone, why.findings) == ("good", ())
    assert why.sentence.startswith("All is well: 6 partitions")


@pytest.mark.parametrize(
    ("seen", "code", "tone"),
    [
        (replace(FINE, cluster=Answer(problem="no route")), "no-answer", "bad"),
        (
            replace(FINE, cluster=Answer(replace(CLUSTER, controller_reachable=False))),
            "controller-unreachable",
            "odd",
        ),
        (
            replace(
                FINE,
                cluster=Answer(
                    replace(CLUSTER, brokers=(*BROKERS[:2], replace(BROKERS[2], alive=False)))
                ),
            ),
            "broker-down",
            "odd",
        ),
        (replace(FINE, logs=Answer(Logs(1.0, {}, {2: "late"}))), "broker-silent", "odd"),
        (replace(FINE, short=short("offline")), "offline", "bad"),
        (replace(FINE, short=short("under_min_isr")), "under-min-isr", "bad"),
        (replace(FINE, short=short("under_replicated")), "under-replicated", "odd"),
        (
            replace(FINE, logs=Answer(Logs(1.0, {1: replace(DISK, disk_free_bytes=9)}))),
            "disk-full",
            "bad",
        ),
        (
            replace(
                FINE,
                blocking=Answer(
                    [
                        BlockingTransaction(
                            where=TopicPartition("t", 0), last_stable_offset=1, high_watermark=5,
                            producer_id=7, producer_epoch=0, last_ms=None, owner=None,
                        )
                    ]
                ),
            ),
            "transaction-unknown",
            "odd",
        ),
        (
            replace(FINE, cluster=Answer(replace(CLUSTER, hibernating=True))),
            "hibernating",
            "bad",
        ),
        (replace(FINE, blocking=Answer(problem="loading")), "not-readable", "odd"),
        (replace(FINE, moves=Answer(problem="paused")), "not-readable", "odd"),
        (replace(NEARLY_FULL, moves=Answer((MOVE,))), "moves-held", "odd"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(seen: ClusterAnswers, code: str, tone: str) -> None:
    why = explain(seen)
    assert [one.code for one in why.findings] == [code]
    assert why.tone == tone


def test_partitions_that_may_not_be_seen_are_counted_nevertheless() -> None:
    """The cluster counts all partitions; its list of topics lacks those of others."""
    counted = replace(CLUSTER, offline_partitions=3, under_replicated_partitions=4)
    why = explain(replace(FINE, cluster=Answer(counted), short=short("offline")))
    assert [one.code for one in why.findings] == ["offline", "offline"]
    assert why.findings[1].subject == "2 partitions"
    assert why.tone == "bad"
    lagging = replace(CLUSTER, under_replicated_partitions=2)
    why = explain(replace(FINE, cluster=Answer(lagging)))
    assert ([one.code for one in why.findings], why.tone) == (["under-replicated"], "odd")


def test_partitions_without_a_leader_count_though_the_list_of_topics_cannot_be_read() -> None:
    counted = replace(CLUSTER, offline_partitions=3)
    why = explain(replace(FINE, cluster=Answer(counted), short=Answer(problem="late")))
    assert ([one.code for one in why.findings], why.tone) == (["offline", "not-readable"], "bad")


def test_moves_wait_for_the_disks_that_they_go_to_alone() -> None:
    assert explain(NEARLY_FULL).tone == "good", "it takes writes"
    elsewhere = replace(MOVE, adding=(1,))
    assert explain(replace(NEARLY_FULL, moves=Answer((elsewhere,)))).tone == "good"
    (finding,) = explain(replace(NEARLY_FULL, moves=Answer((MOVE, elsewhere)))).findings
    assert finding.subject == "the disk of broker 2"
    assert finding.what.endswith("and these wait: flights/3")


def test_the_worst_is_in_the_sentence_although_causes_come_first() -> None:
    down = replace(CLUSTER, brokers=(*BROKERS[:2], replace(BROKERS[2], alive=False)))
    why = explain(replace(FINE, cluster=Answer(down), short=short("offline")))
    assert [one.code for one in why.findings] == ["broker-down", "offline"]
    assert why.sentence.startswith("Some clients are not served: 1 partition without a leader")


def test_a_broker_that_is_down_is_not_said_to_have_a_session() -> None:
    down = replace(CLUSTER, brokers=(*BROKERS[:2], replace(BROKERS[2], alive=False)))
    logs = replace(FINE.logs.value or Logs(0.0), silent={2: "connection refused"})
    why = explain(replace(FINE, cluster=Answer(down), logs=Answer(logs)))
    assert [one.code for one in why.findings] == ["broker-down"]


def test_what_is_not_known_is_no_zero() -> None:
    table = broker_table(replace(FINE, logs=Answer(problem="late")))
    assert table.to_rows()[0]["leaders"] is None
    assert {cell.text for cell in table.rows[0][4:]} == {"–"}


def test_bytes_of_logs_are_called_size_in_every_table() -> None:
    columns = [
        column
        for module in (overview, topics)
        for table in vars(module).values()
        if isinstance(table, tuple)
        for column in table
        if isinstance(column, Column) and column.key == "size_bytes"
    ]
    assert [column.title for column in columns] == ["Size"] * 3
