"""Three brokers as real processes: what acks=ALL promises while brokers are killed and frozen."""

import contextlib
import shutil
import threading
import time
from collections.abc import Callable
from functools import partial

import grpc
import pytest
from support.cluster import PATIENT, Cluster
from support.waiting import wait_until
from support.wire import Wire, make_batch

from penstock.errors import ErrorCode, NotLeaderError, PenstockError
from penstock.proto.v1 import admin_pb2
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.errors import error_from_rpc

MakeCluster = Callable[..., Cluster]
HUGE = {"broker.session.timeout.ms": "180000"}
GAP_S = 60.0
"""Far below that timeout: nobody waited for it."""


class Load(threading.Thread):
    """Produces numbered records to whoever leads, one at a time, until told to stop.

    `acked` holds what was acknowledged, `longest_gap_s` the longest time between two of those.
    """

    def __init__(self, cluster: Cluster, topic: str) -> None:
        super().__init__(daemon=True)
        self.cluster = cluster
        self.topic = topic
        self.acked: list[int] = []
        self.longest_gap_s = 0.0
        self.stopping = threading.Event()

    def run(self) -> None:
        number, last, broker_id = 0, time.monotonic(), self.cluster.leader(self.topic)
        wire = Wire(self.cluster.brokers[broker_id].address)
        while not self.stopping.is_set():
            try:
                wire.produce(self.topic, [b"%d" % number], timeout_ms=1_000)
            except PenstockError:
                wire.channel.close()
                with contextlib.suppress(PenstockError, StopIteration):
                    broker_id = max(self.cluster.leader(self.topic), 0)
                wire = Wire(self.cluster.brokers[broker_id].address)
                self.stopping.wait(0.01)
                continue
            now = time.monotonic()
            self.longest_gap_s = max(self.longest_gap_s, now - last)
            last = now
            self.acked.append(number)
            number += 1
        wire.channel.close()

    def wait_acked(self, count: int) -> None:
        """Until so many more are acknowledged."""
        target = len(self.acked) + count
        wait_until(lambda: len(self.acked) >= target, what=f"{target} records are acknowledged")

    def finish(self) -> None:
        self.stopping.set()
        self.join(300)
        assert not self.is_alive()


def leader_wire(cluster: Cluster, topic: str) -> Wire:
    """To the broker that leads, once it knows that itself: others may hear of it earlier."""

    def found() -> Wire | None:
        leader = cluster.leader(topic)
        if leader < 0:
            return None
        wire = Wire(cluster.brokers[leader].address)
        with contextlib.suppress(PenstockError, StopIteration):
            if wire.log(topic).is_leader:
                return wire
        wire.channel.close()
        return None

    return wait_until(found, what=f"somebody leads {topic}")


def assert_nothing_lost(cluster: Cluster, load: Load) -> None:
    """Every acknowledged record is there, in order; a retry may have doubled an unknown one."""
    with leader_wire(cluster, load.topic) as wire:

        def is_confirmed() -> bool:
            """What a new leader has counts once its followers have it."""
            try:
                return wire.latest(load.topic) >= 0
            except PenstockError:
                return False

        wait_until(is_confirmed, what="the leader knows what is committed")
        stored = [int(value) for value in wire.read_all(load.topic)]
    missing = set(load.acked) - set(stored)
    assert not missing, f"acknowledged and lost: {sorted(missing)[:10]}"
    assert stored == sorted(stored), "the order is kept"


def test_acks_all_is_on_every_replica(shared_cluster: Cluster) -> None:
    shared_cluster.create_topic("everywhere", partitions=3)

    def knows(follower: Wire, partition: int) -> bool:
        return follower.log("everywhere", partition).high_watermark == 2

    in_sync: list[set[int]] = []
    for partition in range(3):
        leader = shared_cluster.leader("everywhere", partition)
        with Wire(shared_cluster.brokers[leader].address) as wire:
            wire.produce("everywhere", [b"a", b"b"], partition=partition)
        in_sync.append(set(shared_cluster.partition("everywhere", partition, leader).isr))
    for broker_id, broker in shared_cluster.brokers.items():
        with Wire(broker.address) as wire:
            for partition in range(3):
                if broker_id in in_sync[partition]:  # not one that stood still for very long
                    assert wire.log("everywhere", partition).log_end_offset == 2
                wait_until(
                    partial(knows, wire, partition), what="the follower knows the high watermark"
                )


def test_a_follower_refuses_and_names_the_leader(shared_cluster: Cluster) -> None:
    shared_cluster.create_topic("led-by-one", assignment=[[1, 2, 0]])
    with Wire(shared_cluster.brokers[0].address) as wire:
        for call in (
            lambda: wire.produce("led-by-one", [b"a"]),
            lambda: wire.fetch("led-by-one", 0),
            lambda: wire.latest("led-by-one"),
        ):
            with pytest.raises(PenstockError) as refused:
                call()
            assert refused.value.code is ErrorCode.NOT_LEADER
            assert isinstance(refused.value, NotLeaderError)
            assert refused.value.leader is not None
            assert refused.value.leader.broker_id == 1
            assert refused.value.leader.port == shared_cluster.brokers[1].port


def test_large_batches_and_a_late_follower_catch_up(make_cluster: MakeCluster) -> None:
    small = {"cache.bytes": "1000000"}
    cluster = make_cluster(brokers=3, broker_config=small, controller_config=PATIENT)
    cluster.create_topic("t", assignment=[[0, 1, 2]])
    cluster.brokers[2].kill()
    with leader_wire(cluster, "t") as wire:
        for number in range(40):
            wire.produce("t", [bytes([number]) * 250_000])
        cluster.brokers[2].start()
        cluster.wait_in_sync("t")
        end = wire.latest("t")
    with Wire(cluster.brokers[2].address) as wire:
        assert wire.log("t").log_end_offset == end == 40


def test_a_killed_leader_loses_nothing_that_was_acknowledged(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=3, controller_config=HUGE)
    cluster.create_topic("t")
    load = Load(cluster, "t")
    load.start()
    for _ in range(3):
        load.wait_acked(50)
        leader = cluster.leader("t")
        cluster.brokers[leader].kill()
        cluster.wait_leader_is_not("t", 0, leader)
        load.wait_acked(50)
        cluster.brokers[leader].start()
        cluster.wait_in_sync("t")
    load.finish()
    assert_nothing_lost(cluster, load)
    assert load.longest_gap_s < GAP_S, "nobody waits for the session timeout"


def test_all_brokers_killed_at_once_come_back_with_everything(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=3, controller_config=PATIENT)
    cluster.create_topic("t")
    load = Load(cluster, "t")
    load.start()
    load.wait_acked(100)
    load.finish()
    for broker in cluster.brokers.values():
        broker.kill()
    for broker in cluster.brokers.values():
        broker.start(wait=False)
    for broker in cluster.brokers.values():
        broker.wait_serving()
    cluster.wait_in_sync("t")
    assert_nothing_lost(cluster, load)


def test_too_few_in_sync_replicas_append_nothing(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=3, controller_config=PATIENT)
    cluster.create_topic("t", assignment=[[0, 1, 2]])
    with Wire(cluster.brokers[0].address) as wire:
        wire.produce("t", [b"a"])
        cluster.brokers[1].kill()
        cluster.brokers[2].kill()
        wait_until(
            lambda: list(cluster.partition("t", 0, at=0).isr) == [0], what="the ISR has shrunk"
        )
        with pytest.raises(PenstockError) as refused:
            wire.produce("t", [b"b"])
        assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
        assert refused.value.retriable
        assert wire.log("t").log_end_offset == 1
        assert wire.read_all("t") == [b"a"]


def test_a_batch_retried_across_failover_and_restart_lands_once(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=3, controller_config=PATIENT)
    cluster.create_topic("t")
    first = cluster.leader("t")
    producer = {"producer_id": 1_000_000, "producer_epoch": 0}
    batches = [
        make_batch([b"%d" % number], base_sequence=number, **producer) for number in range(4)
    ]
    with leader_wire(cluster, "t") as wire:
        for batch in batches:
            wire.produce("t", batch)
    cluster.brokers[first].kill()
    cluster.wait_leader_is_not("t", 0, first)
    with leader_wire(cluster, "t") as wire:
        again = wire.produce("t", batches[3])
        assert (again.duplicate, again.base_offset) == (True, 3)
    cluster.brokers[first].start()
    cluster.wait_in_sync("t")
    for broker in cluster.brokers.values():  # clean stops and starts: state comes from disk
        assert broker.stop() == 0
    for broker in cluster.brokers.values():
        broker.start(wait=False)
    for broker in cluster.brokers.values():
        broker.wait_serving()
    cluster.wait_in_sync("t")
    with leader_wire(cluster, "t") as wire:
        again = wire.produce("t", batches[2])
        assert (again.duplicate, again.base_offset) == (True, 2)
        wire.produce("t", make_batch([b"4"], base_sequence=4, **producer))
        assert wire.read_all("t") == [b"0", b"1", b"2", b"3", b"4"]


def test_a_frozen_follower_leaves_the_isr_and_comes_back(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=3)
    cluster.create_topic("t", assignment=[[0, 1, 2]])
    load = Load(cluster, "t")
    load.start()
    load.wait_acked(20)
    cluster.brokers[2].pause()
    wait_until(lambda: 2 not in cluster.partition("t", 0, at=0).isr, what="2 left the ISR")
    load.wait_acked(20)
    cluster.brokers[2].resume()
    cluster.wait_in_sync("t")
    load.finish()
    assert_nothing_lost(cluster, load)


def test_a_frozen_leader_is_replaced_and_cannot_commit_when_it_wakes(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(brokers=3)
    cluster.create_topic("t", assignment=[[0, 1, 2]])
    with Wire(cluster.brokers[0].address) as old:
        old.produce("t", [b"before"])
        cluster.brokers[0].pause()
        wait_until(lambda: cluster.partition("t", 0, at=1).leader in {1, 2}, what="0 is replaced")
        new = cluster.partition("t", 0, at=1).leader
        with Wire(cluster.brokers[new].address) as wire:
            wait_until(lambda: wire.log("t").is_leader, what="it knows it")
            wire.produce("t", [b"after"])
            cluster.brokers[0].resume()
            with contextlib.suppress(PenstockError):
                old.produce("t", [b"zombie"], timeout_ms=3_000)
                pytest.fail("a deposed leader acknowledged a record")
            cluster.wait_in_sync("t")
            assert wire.read_all("t") == [b"before", b"after"]


def test_sigterm_hands_leadership_over_within_a_short_gap(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=3, controller_config=HUGE)
    cluster.create_topic("t", assignment=[[0, 1, 2]])
    load = Load(cluster, "t")
    load.start()
    load.wait_acked(50)
    assert cluster.brokers[0].stop() == 0
    assert '"leaderships_handed_over": true' in cluster.brokers[0].log_text()
    load.wait_acked(50)
    load.finish()
    assert_nothing_lost(cluster, load)
    assert load.longest_gap_s < GAP_S, "nobody waits for the session timeout"


def test_without_a_controller_data_flows_and_metadata_changes_say_so(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(brokers=3, controller_config=PATIENT)
    cluster.create_topic("t")
    load = Load(cluster, "t")
    load.start()
    load.wait_acked(20)
    cluster.controller.kill()
    cluster.wait_controller(reachable=False)
    load.wait_acked(50)
    with leader_wire(cluster, "t") as wire:
        assert wire.read_all("t")
        new = admin_pb2.NewTopic(topic="new", partitions=1, replication_factor=3)
        with pytest.raises(grpc.RpcError) as caught:
            wire.admin.CreateTopics(admin_pb2.CreateTopicsRequest(topics=[new]), timeout=120)
        refused = error_from_rpc(caught.value)
        assert refused.code is ErrorCode.CONTROLLER_UNAVAILABLE
        assert refused.retriable
        assert "reads and writes go on" in str(refused)
        answer = wire.admin.DescribeConfigs(
            admin_pb2.DescribeConfigsRequest(topic="t"), timeout=120
        )
        assert not answer.HasField("error")
    cluster.controller.start()
    cluster.wait_controller()
    cluster.create_topic("new")
    load.wait_acked(20)
    load.finish()
    assert_nothing_lost(cluster, load)


def test_retention_moves_the_log_start_on_every_replica(make_cluster: MakeCluster) -> None:
    often = {"log.retention.check.interval.ms": "200"}
    cluster = make_cluster(brokers=3, broker_config=often, controller_config=PATIENT)
    cluster.create_topic("t", configs={"retention.bytes": "30000"})
    with leader_wire(cluster, "t") as wire:
        for _ in range(20):
            wire.produce("t", [b"x" * 10_000])
        wait_until(
            lambda: wire.offsets("t", earliest=pb.Earliest()).offset == 17,
            what="retention has left 30,000 bytes and no batch more",
        )

    def starts_there(follower: Wire) -> bool:
        log = follower.log("t")
        return log.log_start_offset == 17 and 30_000 <= log.bytes < 40_000

    for broker in cluster.brokers.values():
        with Wire(broker.address) as wire:
            wait_until(partial(starts_there, wire), what="the follower's log starts there too")


def test_a_lost_volume_is_filled_again_from_the_others(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=3, controller_config=PATIENT)
    cluster.create_topic("t", assignment=[[0, 1, 2]])
    load = Load(cluster, "t")
    load.start()
    load.wait_acked(50)
    cluster.brokers[0].kill()
    cluster.wait_leader_is_not("t", 0, 0)
    shutil.rmtree(cluster.data_dir(0))
    load.wait_acked(20)
    cluster.brokers[0].start()
    cluster.wait_in_sync("t")
    load.finish()
    assert_nothing_lost(cluster, load)
    with Wire(cluster.brokers[0].address) as wire:
        assert wire.log("t").log_end_offset >= len(load.acked)


def test_configs_change_without_a_restart(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=1)
    cluster.create_topic("t")
    with Wire(cluster.brokers[0].address) as wire:
        wire.produce("t", [b"x" * 3_000])
        answer = wire.admin.AlterConfigs(
            admin_pb2.AlterConfigsRequest(topic="t", set={"max.message.bytes": "2048"}),
            timeout=120,
        )
        assert not answer.HasField("error"), answer

        def is_refused() -> bool:
            try:
                wire.produce("t", [b"x" * 3_000])
            except PenstockError as error:
                return error.code is ErrorCode.RECORD_TOO_LARGE
            return False

        wait_until(is_refused, what="the new limit holds")


@pytest.mark.parametrize("replicas", [[1], [1, 0]])
def test_a_topic_made_while_its_broker_is_gone_is_led_once_that_is_back(
    make_cluster: MakeCluster, replicas: list[int]
) -> None:
    """Nobody could have stored anything, and nobody else may lead: there is nothing to wait for."""
    cluster = make_cluster(brokers=2, controller_config=PATIENT)
    cluster.brokers[1].kill()
    new = admin_pb2.NewTopic(topic="new", assignment=[admin_pb2.ReplicaList(broker_ids=replicas)])
    cluster._create(admin_pb2.CreateTopicsRequest(topics=[new]), is_first=True)
    cluster.brokers[1].start()
    cluster.wait_alive({0, 1})
    wait_until(lambda: _takes_a_record(cluster, "new"), what="a record is taken")


def _takes_a_record(cluster: Cluster, topic: str) -> bool:
    leader = cluster.leader(topic)
    if leader < 0:
        return False
    wire = Wire(cluster.brokers[leader].address)
    try:
        wire.produce(topic, [b"first"], timeout_ms=1_000)
    except PenstockError:
        return False
    finally:
        wire.channel.close()
    return True
