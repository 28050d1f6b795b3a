"""The admin client against real brokers: what it changes is changed, what it refuses is named."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.cluster import Cluster
from support.waiting import wait_until, wait_until_async

from penstock.client import (
    EARLIEST,
    LATEST,
    Admin,
    AsyncAdmin,
    Consumer,
    Producer,
    TopicPartition,
)
from penstock.errors import ClusterError, ErrorCode, MisuseError, OffsetOutOfRangeError

SETTLE_S = 300.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients read their own writes also from a broker that hears of them late."""
    monkeypatch.setattr("penstock.client.admin.topic_calls.SETTLE_S", SETTLE_S)


@pytest.fixture
def admin(shared_cluster: Cluster) -> Iterator[Admin]:
    with Admin(shared_cluster.bootstrap) as admin:
        yield admin


def test_a_topic_is_ready_for_use_when_create_returns(
    shared_cluster: Cluster, admin: Admin
) -> None:
    made = admin.create_topic("ready", 4, 3, {"retention.ms": "1000000"})
    assert len(made.partitions) == 4
    assert all(len(part.replicas) == 3 and part.leader >= 0 for part in made.partitions)
    assert made.configs == {"retention.ms": "1000000"}
    with Producer(shared_cluster.bootstrap) as producer:
        for partition in range(4):
            producer.send("ready", b"v", partition=partition).result(120)
    assert admin.describe_topics(["ready"])["ready"].topic_id == made.topic_id
    assert "ready" in admin.list_topics()
    assert admin.describe_topics()["ready"].topic_id == made.topic_id


def test_placement_may_be_given(admin: Admin) -> None:
    made = admin.create_topic("placed", assignment=[[2, 0], [1, 2]])
    assert [part.replicas for part in made.partitions] == [(2, 0), (1, 2)]
    assert [part.leader for part in made.partitions] == [2, 1]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("a b", 1, 1), ErrorCode.INVALID_TOPIC_NAME),
        (("refused", 1, 9), ErrorCode.INVALID_REPLICATION_FACTOR),
        (("refused", 1, 1, {"retention": "1"}), ErrorCode.INVALID_CONFIG),
        (("refused", 10**6, 1), ErrorCode.INVALID_PARTITIONS),
    ],
)
def test_topics_that_cannot_be_are_refused(
    admin: Admin, arguments: tuple[Any, ...], code: ErrorCode
) -> None:
    with pytest.raises(ClusterError) as refused:
        admin.create_topic(*arguments)
    assert refused.value.code is code
    assert "refused" not in admin.list_topics()


def test_creating_twice_and_validating_only(admin: Admin) -> None:
    admin.create_topic("dry", 1, 1, validate_only=True)
    assert "dry" not in admin.list_topics()
    admin.create_topic("once", 1, 1)
    with pytest.raises(ClusterError) as twice:
        admin.create_topic("once", 1, 1)
    assert twice.value.code is ErrorCode.TOPIC_ALREADY_EXISTS


def test_partitions_grow_and_producers_use_them(shared_cluster: Cluster, admin: Admin) -> None:
    admin.create_topic("growing", 1, 3)
    admin.create_partitions("growing", 3)
    assert len(admin.describe_topics(["growing"])["growing"].partitions) == 3
    with Producer(shared_cluster.bootstrap) as producer:
        assert producer.send("growing", b"v", partition=2).result(120).offset == 0
    with pytest.raises(ClusterError) as shrunk:
        admin.create_partitions("growing", 2)
    assert shrunk.value.code is ErrorCode.INVALID_PARTITIONS


@pytest.mark.parametrize("columns", [False, True])
def test_a_partition_added_later_is_written_to_by_its_number(
    shared_cluster: Cluster, admin: Admin, columns: bool
) -> None:
    topic = f"grown-{columns}"
    admin.create_topic(topic, 1, 1)
    with Producer(shared_cluster.bootstrap) as producer:
        producer.send(topic, b"v", partition=0).result(120)
        for partition in (1, 2):
            admin.create_partitions(topic, partition + 1)
            if columns:
                sent = producer.send_columns(topic, [b"v"], partition=partition)
                assert sent.result(120)[0].partition == partition
            else:
                assert producer.send(topic, b"v", partition=partition).result(120).offset == 0
        with pytest.raises(MisuseError, match="partitions 0 to 2, not 3"):
            producer.send(topic, b"v", partition=3)


def test_a_partition_that_somebody_else_has_added_is_read(
    shared_cluster: Cluster, admin: Admin
) -> None:
    topic = "grown-by-others"
    admin.create_topic(topic, 1, 1)
    with Admin(shared_cluster.bootstrap) as late, Consumer(shared_cluster.bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert late.list_offsets({TopicPartition(topic, 0): LATEST})
        admin.create_partitions(topic, 2)
        assert late.list_offsets({TopicPartition(topic, 1): LATEST})
        consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        with pytest.raises(MisuseError, match="partitions 0 to 1, not 2"):
            late.list_offsets({TopicPartition(topic, 2): LATEST})


def test_a_topic_may_be_deleted_and_created_again_by_one_admin(
    shared_cluster: Cluster, admin: Admin
) -> None:
    ids = set()
    for partitions in (1, 3, 2):
        made = admin.create_topic("again", partitions, 3)
        assert len(made.partitions) == partitions
        ids.add(made.topic_id)
        offsets = admin.list_offsets(
            {TopicPartition("again", index): LATEST for index in range(partitions)}
        )
        assert {found.offset for found in offsets.values()} == {0}
        with Producer(shared_cluster.bootstrap) as producer:
            assert producer.send("again", b"v", partition=0).result(120).offset == 0
        admin.delete_topic("again")
    assert len(ids) == 3


def test_configs_are_set_unset_and_described(admin: Admin) -> None:
    admin.create_topic("configured", 1, 1)
    admin.alter_configs("configured", {"retention.ms": "5000000", "max.message.bytes": "9999"})
    admin.alter_configs("configured", {"max.message.bytes": "8888"}, unset=["retention.ms"])
    entries = {entry.name: entry for entry in admin.describe_configs("configured")}
    assert (entries["max.message.bytes"].value, entries["max.message.bytes"].is_default) == (
        "8888", False,
    )  # fmt: skip
    assert entries["retention.ms"].is_default
    assert entries["retention.ms"].documentation
    with pytest.raises(ClusterError) as refused:
        admin.alter_configs("configured", {"max.message.bytes": "many"})
    assert refused.value.code is ErrorCode.INVALID_CONFIG


def test_deleted_topics_are_gone_and_unknown_ones_an_error_at_once(admin: Admin) -> None:
    made = admin.create_topic("doomed", 1, 1)
    with pytest.raises(ClusterError) as other:
        admin.delete_topic("doomed", topic_id="7f0c5a52-0000-4000-8000-000000000000")
    assert other.value.code is ErrorCode.TOPIC_ID_MISMATCH
    admin.delete_topic("doomed", topic_id=made.topic_id)
    with pytest.raises(ClusterError) as gone:
        admin.delete_topic("doomed")
    assert gone.value.code is ErrorCode.UNKNOWN_TOPIC
    for ask in (admin.describe_configs, lambda topic: admin.alter_configs(topic, {})):
        with pytest.raises(ClusterError) as unknown:
            ask("doomed")
        assert unknown.value.code is ErrorCode.UNKNOWN_TOPIC


def test_offsets_are_listed_by_place_and_time_and_records_deleted(
    shared_cluster: Cluster, admin: Admin
) -> None:
    made = admin.create_topic("offsets", 2, 3)
    zero, one = TopicPartition("offsets", 0), TopicPartition("offsets", 1)
    with Producer(shared_cluster.bootstrap) as producer:
        for index in range(10):
            producer.send("offsets", b"v", partition=0)
            if index == 4:
                producer.flush()
    ends = admin.list_offsets({zero: LATEST, one: LATEST})
    assert (ends[zero].offset, ends[one].offset) == (10, 0)
    assert ends[zero].topic_id == made.topic_id
    assert admin.list_offsets({zero: 0})[zero].offset == 0
    assert admin.list_offsets({zero: 2**45})[zero].offset == -1
    assert admin.delete_records({zero: 4}) == {zero: 4}
    assert admin.list_offsets({zero: EARLIEST})[zero].offset == 4
    assert admin.delete_records({zero: -1, one: -1}) == {zero: 10, one: 0}
    with pytest.raises(OffsetOutOfRangeError):
        admin.delete_records({zero: 11})
    with pytest.raises(MisuseError, match="partitions 0 to 1"):
        admin.list_offsets({TopicPartition("offsets", 7): LATEST})
    with pytest.raises(MisuseError, match="is not a valid offset"):
        admin.list_offsets({zero: 2**63})


def test_the_cluster_and_its_logs_are_described(shared_cluster: Cluster, admin: Admin) -> None:
    admin.create_topic("described", 3, 3)
    with Producer(shared_cluster.bootstrap) as producer:
        producer.send("described", b"v" * 1_000, partition=1).result(120)
    cluster = admin.describe_cluster()
    assert [broker.broker_id for broker in cluster.brokers] == [0, 1, 2]
    assert cluster.controller_reachable
    assert cluster.offline_partitions == 0
    logs = admin.describe_logs(["described"])
    assert [log.broker_id for log in logs] == [0, 1, 2]
    (leader,) = [log for one in logs for log in one.logs if log.partition == 1 and log.is_leader]
    assert (leader.high_watermark, leader.log_start_offset) == (1, 0)
    assert leader.size_bytes > 1_000
    assert all(0 < log.disk_free_bytes <= log.disk_total_bytes for log in logs)
    (only,) = admin.describe_logs(broker_ids=[2])
    assert only.broker_id == 2
    with pytest.raises(MisuseError, match=r"no such brokers: 9;"):
        admin.describe_logs(broker_ids=[9])


def test_leaderships_move_away_and_back(shared_cluster: Cluster, admin: Admin) -> None:
    admin.create_topic("moving", assignment=[[0, 1, 2], [1, 2, 0]])
    shared_cluster.wait_in_sync("moving")
    assert admin.elect_leaders(away_from_broker=0) >= 1

    def leader() -> int:
        return admin.describe_topics(["moving"])["moving"].partitions[0].leader

    wait_until(lambda: leader() != 0, what="broker 0 leads no more")
    assert admin.elect_leaders([TopicPartition("moving", 0)]) == 1
    wait_until(lambda: leader() == 0, what="the preferred leader leads again")
    admin.elect_leaders()


async def test_changes_wait_for_a_controller_that_is_away(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster(brokers=1)
    cluster.create_topic("before")
    async with (
        AsyncAdmin(cluster.bootstrap) as admin,
        AsyncAdmin(cluster.bootstrap, request_timeout_ms=4_000) as impatient,
    ):
        assert await admin.list_topics() == ["before"]
        cluster.controller.kill()
        cluster.wait_controller(reachable=False)

        async def is_told() -> bool:
            with pytest.raises(ClusterError) as away:
                await impatient.create_topic("meanwhile", 1, 1)
            found = away.value.code, "4 s" in away.value.message
            return found == (ErrorCode.CONTROLLER_UNAVAILABLE, True)  # or nobody answered in time

        await wait_until_async(is_told, what="the controller is away")
        assert await admin.list_topics() == ["before"]
        cluster.controller.start(wait=False)
        await admin.create_topic("after", 1, 1)
        assert "after" in await admin.list_topics()


def test_what_the_topic_sets_is_told_from_what_it_inherits(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster(controller_config={"retention.ms": "1000000"})
    with Admin(cluster.bootstrap) as admin:
        made = admin.create_topic("t", 1, 1, {"max.message.bytes": "5000"})
        assert made.configs == {"retention.ms": "1000000", "max.message.bytes": "5000"}
        assert made.inherited == {"retention.ms"}

        def own() -> dict[str, str]:
            entries = admin.describe_configs("t")
            return {entry.name: entry.value for entry in entries if not entry.is_default}

        assert own() == {"max.message.bytes": "5000"}
        admin.alter_configs("t", {"retention.ms": "7"}, unset=["max.message.bytes"])
        assert own() == {"retention.ms": "7"}
        began = time.monotonic()
        admin.alter_configs("t", unset=["retention.ms"])
        assert time.monotonic() - began < SETTLE_S / 2, "it has seen the change"
        assert own() == {}
        seen = admin.describe_topics(["t"])["t"]
        assert seen.configs == {"retention.ms": "1000000"}
        assert seen.inherited == {"retention.ms"}
