"""Bad days: what users see while the cluster cannot do its work, and that it passes by itself.

As in test_kills, a recorded workload runs and `penstock verify` judges it; here deliveries may
fail where the test says so, and what failed must then not be in the log (I8).
"""

import os
import random
import time
from collections.abc import Sequence
from shutil import rmtree

import pytest
from support.cluster import Cluster
from support.load import Load, MakeLoad, assert_nothing_noticed
from support.processes import ServerProcess
from support.waiting import wait_until

from penstock.client import Producer
from penstock.errors import ErrorCode, PenstockError

ROUNDS = int(os.environ.get("PENSTOCK_HARM_ROUNDS", "6"))
"""Of random harm; more of them, and other seeds, find more."""
CONTROLLER_CONFIG = {"broker.session.timeout.ms": "2500"}
"""Shorter than the longest freeze; other tests' load must not reach it."""


def freeze(processes: Sequence[ServerProcess], duration_s: float) -> None:
    """SIGSTOP, and SIGCONT after a while."""
    for process in processes:
        process.pause()
    until = time.monotonic() + duration_s
    wait_until(lambda: time.monotonic() >= until, what="the freeze is over")
    for process in processes:
        process.resume()


def do_harm(harm: str, victims: Sequence[ServerProcess], *, freeze_s: float) -> None:
    if harm == "freeze":
        freeze(victims, freeze_s)
        return
    for victim in victims:
        if harm == "kill":
            victim.kill()
        else:
            victim.stop()


def wait_healthy(cluster: Cluster, load: Load) -> None:
    """Until every process does its work, and no broker's picture of it is from before."""
    for process in cluster.processes:
        process.wait_serving()
    cluster.wait_controller()
    cluster.wait_in_sync(load.config.topic)
    load.wait_writing()


def test_below_min_isr_writes_fail_definitely_and_resume_by_themselves(
    cluster: Cluster, make_load: MakeLoad
) -> None:
    with make_load(delivery_timeout_ms=1_000) as load:
        topic = load.config.topic
        cluster.wait_in_sync(topic)
        for broker_id in (1, 2):
            cluster.brokers[broker_id].kill()
        wait_until(
            lambda: all(list(part.isr) == [0] for part in cluster.known(topic).partitions),
            what="broker 0 is alone in every ISR",
        )
        wait_until(
            lambda: load.failed_because(ErrorCode.DELIVERY_TIMED_OUT) > 10,
            what="deliveries fail",
        )
        with Producer(cluster.bootstrap, delivery_timeout_ms=5_000) as producer:

            def says_why() -> bool:
                """A machine that stood still for as long is told that instead."""
                with pytest.raises(PenstockError) as refused:
                    producer.send(topic, b"refused", partition=0).result(120)
                return "min.insync.replicas is 2: nothing was" in refused.value.message

            wait_until(says_why, what="the error says why")
        for broker_id in (1, 2):
            cluster.brokers[broker_id].start(wait=False)
        load.wait_writing()
        verdict = load.judge()
    assert verdict.passed, verdict.to_dict()
    assert verdict.failed > 0
    assert verdict.final < verdict.sent


def test_everything_killed_at_once_and_started_again(cluster: Cluster, load: Load) -> None:
    for process in cluster.processes:
        process.kill()
    for process in cluster.processes:
        process.start(wait=False)
    load.wait_writing()
    cluster.wait_in_sync(load.config.topic)
    assert_nothing_noticed(load.judge())


def test_everything_frozen_beyond_every_timeout(cluster: Cluster, load: Load) -> None:
    """As when a laptop sleeps: nobody is dead, but everybody's clock says so."""
    freeze(cluster.processes, 6.0)
    load.wait_writing()
    cluster.wait_in_sync(load.config.topic)
    assert_nothing_noticed(load.judge())


def test_a_broker_in_a_crash_loop(cluster: Cluster, load: Load) -> None:
    for _ in range(3):
        cluster.brokers[0].kill()
        cluster.brokers[0].start()
    load.wait_writing()
    cluster.wait_in_sync(load.config.topic)
    assert_nothing_noticed(load.judge())


@pytest.mark.timeout(1_500 + 30 * ROUNDS)
def test_random_harm(cluster: Cluster, load: Load, rng: random.Random) -> None:
    """Kills, stops and freezes of one or two processes, with and without time to recover."""
    for _ in range(ROUNDS):
        victims = rng.sample(cluster.processes, k=rng.choice([1, 1, 2]))
        harm = rng.choice(["kill", "stop", "freeze"])
        recover, linger = rng.random() < 0.5, rng.random() < 0.5
        names = " and ".join(victim.name for victim in victims)
        print(f"{harm} {names}, recovered before: {recover}, stays away: {linger}")
        if recover:
            wait_healthy(cluster, load)
        do_harm(harm, victims, freeze_s=rng.uniform(0.1, 4.5))
        if recover and linger and len(victims) == 1:
            load.wait_some_acks()
        for victim in victims:
            if not victim.is_running:
                victim.start(wait=False)
    wait_healthy(cluster, load)
    assert_nothing_noticed(load.judge())


def test_a_broker_whose_disk_was_replaced_is_in_sync_again_without_traffic(
    cluster: Cluster,
) -> None:
    cluster.create_topic("new-disk", partitions=2)
    with Producer(cluster.bootstrap) as producer:
        for partition in (0, 1):
            producer.send_columns("new-disk", [b"value"] * 100, partition=partition).result(30)
    cluster.wait_in_sync("new-disk")
    leader = cluster.leader("new-disk", 0)
    cluster.brokers[leader].kill()
    rmtree(cluster.data_dir(leader))
    cluster.wait_leader_is_not("new-disk", 0, leader)
    cluster.brokers[leader].start()
    cluster.wait_in_sync("new-disk")
