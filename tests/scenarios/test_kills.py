"""Processes are killed, stopped and frozen under load: nothing acknowledged is ever lost.

Two producers with acks=ALL and a live reader work on six partitions, replication factor 3,
min.insync.replicas 2, while a test does harm; `penstock verify` judges what they saw (I2, I6-I9,
I17), and the harm must look like a pause to them: no failed and no unknown delivery. The pauses
are printed (`pytest -rP`).
"""

from contextlib import suppress
from shutil import rmtree

from support.cluster import Cluster
from support.load import Load, assert_nothing_noticed
from support.waiting import wait_until

from penstock.client import Admin, TopicPartition
from penstock.errors import PenstockError

FORKED = False
CONTROLLER_CONFIG = {"broker.session.timeout.ms": "2500"}
"""Brokers are frozen for longer, and die while no controller looks."""
GAP_MS_MAX = 25_000
"""A hard kill costs a third of a second, a planned move less; `benchmarks/failover.py` measures.
Here other tests share the cores, which stand still for seconds. What somebody waits out for nothing
is caught: a request that nobody answers takes 30 seconds."""


def led_by(cluster: Cluster, topic: str, broker_id: int, at: int | None = None) -> list[int]:
    info = cluster.topic(topic, at)
    assert info is not None
    return [part.partition for part in info.partitions if part.leader == broker_id]


def wait_leads(cluster: Cluster, topic: str, broker_id: int) -> None:
    """Until a broker leads what it should: one that was silent for too long has lost it."""

    def leads() -> bool:
        info = cluster.known(topic)
        mine = [part for part in info.partitions if part.replicas[0] == broker_id]
        assert mine, f"broker {broker_id} is to lead nothing: no test"
        if all(part.leader == broker_id for part in mine):
            return True
        with suppress(PenstockError):
            admin.elect_leaders([TopicPartition(topic, part.partition) for part in mine])
        return False

    with Admin(cluster.bootstrap) as admin:
        wait_until(leads, what=f"broker {broker_id} leads")


def wait_out_of_isr(cluster: Cluster, topic: str, broker_id: int) -> None:
    """Until the cluster has noticed that a broker is gone."""

    def noticed() -> bool:
        info = cluster.topic(topic)
        return info is not None and all(
            broker_id not in part.isr and part.leader not in {broker_id, -1}
            for part in info.partitions
        )

    wait_until(noticed, what=f"broker {broker_id} is out of all ISRs of {topic}")


def wait_nobody_leads(cluster: Cluster, topic: str) -> None:
    """Until brokers know it: that they are alive may reach them before who leads does."""
    wait_until(
        lambda: {part.leader for part in cluster.known(topic).partitions} == {-1},
        what=f"nobody leads {topic}",
    )


def report(what: str, load: Load) -> None:
    print(f"{what}: longest write gap of a partition {load.gap_ms()} ms")


def test_each_broker_killed_in_turn(cluster: Cluster, load: Load) -> None:
    topic = load.config.topic
    for broker_id, broker in cluster.brokers.items():
        cluster.wait_in_sync(topic)
        wait_leads(cluster, topic, broker_id)
        load.measure()
        broker.kill()
        wait_out_of_isr(cluster, topic, broker_id)
        load.wait_writing()
        report(f"kill -9 of broker {broker_id}", load)
        assert load.gap_ms() < GAP_MS_MAX
        broker.start()
    cluster.wait_in_sync(topic)
    load.wait_writing()
    assert_nothing_noticed(load.judge())


def test_the_controller_killed_and_restarted(cluster: Cluster, load: Load) -> None:
    load.measure()
    cluster.controller.kill()
    load.wait_writing()
    cluster.controller.start()
    cluster.wait_controller()
    cluster.create_topic("made-by-the-controller-that-came-back", replication_factor=3)
    load.wait_writing()
    report("kill -9 of the controller and restart", load)
    assert_nothing_noticed(load.judge())


def test_a_leader_dies_while_the_controller_is_away(cluster: Cluster, load: Load) -> None:
    cluster.wait_in_sync(load.config.topic)
    load.measure()
    cluster.controller.kill()
    cluster.brokers[0].kill()
    cluster.controller.start()
    wait_out_of_isr(cluster, load.config.topic, 0)
    load.wait_writing()
    report("kill -9 of the controller, then of a broker, then the controller back", load)
    cluster.brokers[0].start()
    cluster.wait_in_sync(load.config.topic)
    assert_nothing_noticed(load.judge())


def test_all_brokers_killed_at_once(cluster: Cluster, load: Load) -> None:
    load.measure()
    for broker in cluster.brokers.values():
        broker.kill()
    for broker in cluster.brokers.values():
        broker.start(wait=False)
    load.wait_writing()
    report("kill -9 of all brokers and restart", load)
    cluster.wait_in_sync(load.config.topic)
    assert_nothing_noticed(load.judge())


def test_a_rolling_restart(cluster: Cluster, load: Load) -> None:
    load.measure()
    for broker in cluster.brokers.values():
        cluster.wait_in_sync(load.config.topic)
        assert broker.stop() == 0
        broker.start()
    cluster.wait_in_sync(load.config.topic)
    load.wait_writing()
    report("rolling restart by SIGTERM", load)
    assert load.gap_ms() < GAP_MS_MAX
    assert_nothing_noticed(load.judge())


def test_a_leader_frozen_until_it_is_replaced_then_woken(cluster: Cluster, load: Load) -> None:
    topic = load.config.topic
    cluster.wait_in_sync(topic)
    zombie = cluster.leader(topic, 0)
    witness = next(one for one in cluster.brokers if one != zombie)
    load.measure()
    cluster.brokers[zombie].pause()
    wait_until(
        lambda: not led_by(cluster, topic, zombie, at=witness),
        what=f"the frozen broker {zombie} leads nothing",
    )
    load.wait_writing()
    report("SIGSTOP of a leader", load)
    cluster.brokers[zombie].resume()
    cluster.wait_alive(set(cluster.brokers))
    cluster.wait_in_sync(topic)
    load.wait_writing()
    report("SIGSTOP of a leader, SIGCONT", load)
    assert_nothing_noticed(load.judge())


def test_two_leaders_killed_one_after_the_other(cluster: Cluster, load: Load) -> None:
    topic = load.config.topic
    cluster.wait_in_sync(topic)
    load.measure()
    first = cluster.leader(topic, 0)
    cluster.brokers[first].kill()
    second = cluster.wait_leader_is_not(topic, 0, first)
    cluster.brokers[second].kill()
    cluster.brokers[second].start(wait=False)
    cluster.brokers[first].start(wait=False)
    load.wait_writing()
    report(f"kill -9 of leader {first}, then of its successor {second}", load)
    cluster.wait_in_sync(topic)
    assert_nothing_noticed(load.judge())


def test_a_replica_that_missed_records_comes_back_first_and_does_not_lead(
    cluster: Cluster, load: Load
) -> None:
    topic = load.config.topic
    cluster.wait_in_sync(topic)
    cluster.brokers[2].kill()
    wait_out_of_isr(cluster, topic, 2)
    load.wait_writing()
    for broker_id in (0, 1):
        cluster.brokers[broker_id].kill()
    cluster.brokers[2].start()
    cluster.wait_alive({2})
    wait_nobody_leads(cluster, topic)
    for broker_id in (0, 1):
        cluster.brokers[broker_id].start(wait=False)
    load.wait_writing()
    cluster.wait_in_sync(topic)
    assert_nothing_noticed(load.judge())


def test_the_judge_sees_real_loss(cluster: Cluster, load: Load) -> None:
    """More disks are lost than min.insync.replicas - 1, and the user asks for what is left."""
    topic = load.config.topic
    cluster.wait_in_sync(topic)
    cluster.brokers[2].kill()
    wait_out_of_isr(cluster, topic, 2)
    load.wait_writing()
    load.wait_read()  # some that only the others have
    for broker_id in (0, 1):
        cluster.brokers[broker_id].kill()
        rmtree(cluster.data_dir(broker_id))
    for broker in cluster.brokers.values():
        broker.start()
    cluster.wait_alive(set(cluster.brokers))
    wait_nobody_leads(cluster, topic)  # a replica without the data would
    with Admin(cluster.bootstrap) as admin:
        admin.alter_configs(topic, {"unclean.leader.election.enable": "true"})
    load.wait_writing()
    verdict = load.judge()
    assert not verdict.passed
    assert verdict.breaches["lost"].records > 0
    assert "vanished" in verdict.breaches
