"""A broker's volume is restored from an older copy, which says that nothing is lost (I7).

The copy is of broker 0, whose seat is the last in the ISR when all have stopped. Believed, it would
lead without what was acknowledged after the copy was made, and the others would never follow it.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.cluster import PATIENT, Cluster
from support.plain_records import read, write
from support.unopened import swap_checkpoint, wait_well
from support.waiting import wait_until

from penstock.client import Admin

BEFORE = [b"before %d" % number for number in range(20)]
AFTER = [b"after %d" % number for number in range(20)]


def copy_stopped(cluster: Cluster, copy: Path) -> None:
    """Of the run before: another one has opened the directory since."""
    cluster.wait_in_sync("t")
    assert cluster.brokers[0].stop() == 0
    shutil.copytree(cluster.data_dir(0), copy)
    cluster.brokers[0].start()


def copy_running(cluster: Cluster, copy: Path) -> None:
    """Of the last run, on the same boot: nothing but its clean stop comes after it."""
    cluster.wait_in_sync("t")
    shutil.copytree(cluster.data_dir(0), copy)


def restore(cluster: Cluster, copy: Path, broker_id: int = 0) -> None:
    """Of a broker that is down."""
    shutil.rmtree(cluster.data_dir(broker_id))
    shutil.copytree(copy, cluster.data_dir(broker_id))


def start_refused(cluster: Cluster, broker_id: int = 0) -> str:
    """It ends once, and is started again; returns the line in its log."""
    broker = cluster.brokers[broker_id]
    broker.start(wait=False)
    assert broker.wait_end() == 1, "which has it started again, wherever it runs"
    (line,) = (one for one in broker.log_text().splitlines() if "restored from an older" in one)
    broker.start()
    return line


def generations(cluster: Cluster) -> list[str]:
    """As broker 0 has them on disk."""
    found = json.loads((cluster.data_dir(0) / "generations.json").read_text())
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("make_copy", [copy_stopped, copy_running])
def test_a_restored_volume_leads_nothing_and_what_is_missing_is_copied_again(
    tmp_path: Path, make_copy: Callable[[Cluster, Path], None]
) -> None:
    with Cluster(tmp_path / "cluster", brokers=3, controller_config=PATIENT) as cluster:
        cluster.create_topic("t", assignment=[[0, 1, 2]], configs={"min.insync.replicas": "2"})
        write(cluster, "t", BEFORE)
        make_copy(cluster, tmp_path / "copy")
        cluster.wait_in_sync("t")
        write(cluster, "t", AFTER)
        for broker_id in (1, 2, 0):
            assert cluster.brokers[broker_id].stop() == 0
        newest = generations(cluster)[-1]
        restore(cluster, tmp_path / "copy")

        line = start_refused(cluster)
        assert newest in line
        assert "nothing of it is trusted" in line
        found = cluster.partition("t", 0)
        assert (found.leader, 0 in found.isr) == (-1, False), "its seat is gone"

        cluster.brokers[2].start()
        cluster.wait_leader("t", 0, 2)
        cluster.brokers[1].start()
        cluster.wait_in_sync("t")
        assert read(cluster, "t", 40) == BEFORE + AFTER
        assert cluster.brokers[2].stop() == 0
        cluster.wait_leader_is_not("t", 0, 2)
        assert read(cluster, "t", 40) == BEFORE + AFTER, "broker 0 has all of it again"


def test_a_volume_that_nobody_replaced_is_believed_however_its_broker_ended(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=1, controller_config=PATIENT) as cluster:
        cluster.create_topic("t", assignment=[[0]])
        write(cluster, "t", BEFORE)
        broker = cluster.brokers[0]
        for end in (broker.stop, broker.kill, broker.stop):
            end()
            before = generations(cluster)[-1]
            broker.start()
            assert len(generations(cluster)) == 1, "the controller knows of this run"
            assert generations(cluster) != [before]
            assert read(cluster, "t", 20) == BEFORE
        broker.stop()
        cluster.controller.kill()
        for _ in range(2):
            broker.start(wait=False)
            wait_until(lambda: "no controller session" in broker.log_text(), what="it asks")
            broker.kill()
        cluster.controller.start()
        broker.start()
        assert read(cluster, "t", 20) == BEFORE
        assert "nothing of it is trusted" not in broker.log_text()


def test_who_gives_up_what_came_after_a_snapshot_can_go_back_to_it(tmp_path: Path) -> None:
    """As docs/operations.md says, of a partition none of whose logs can be opened."""
    with Cluster(tmp_path / "cluster", brokers=3, controller_config=PATIENT) as cluster:
        configs = {"min.insync.replicas": "2"}
        topic_id = cluster.create_topic("t", assignment=[[0, 1, 2]], configs=configs)
        cluster.create_topic("beside", assignment=[[0, 1, 2]], configs=configs)
        for topic in ("t", "beside"):
            write(cluster, topic, BEFORE)
        cluster.wait_in_sync("t")
        for broker_id in range(3):
            assert cluster.brokers[broker_id].stop() == 0
            shutil.copytree(cluster.data_dir(broker_id), tmp_path / f"copy-{broker_id}")
            cluster.brokers[broker_id].start()
            cluster.wait_in_sync("t")
        for topic in ("t", "beside"):
            write(cluster, topic, AFTER)
        for broker_id in range(3):
            assert cluster.brokers[broker_id].stop() == 0
            swap_checkpoint(cluster, broker_id, topic_id, b"\xff")
        for broker_id in range(3):
            cluster.brokers[broker_id].start(wait=False)
        for broker_id in range(3):
            cluster.brokers[broker_id].wait_serving()
        cluster.wait_in_sync("beside")
        cluster.wait_leaders("t")

        former = cluster.leader("t")
        restored = (former + 1) % 3
        assert cluster.brokers[restored].stop() == 0
        restore(cluster, tmp_path / f"copy-{restored}", restored)
        start_refused(cluster, restored)
        wait_well(cluster, "beside")
        assert cluster.leader("t") == former, "nobody decides that but a person"
        with Admin(cluster.bootstrap) as admin:
            admin.alter_configs("t", {"unclean.leader.election.enable": "true"})
        assert cluster.brokers[former].stop() == 0
        cluster.wait_leader("t", 0, restored)
        cluster.brokers[former].start()
        wait_well(cluster, "t")
        assert read(cluster, "t", 20) == BEFORE
        assert read(cluster, "beside", 40) == BEFORE + AFTER
