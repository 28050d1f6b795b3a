"""What a test is told when a server of its own ends, and that nobody gets such a server's port."""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support import hanging_child
from support.cluster import Cluster
from support.processes import HOST, ReservedPort, reserve_row
from support.waiting import (
    Patience,
    unwatch,
    wait_exit,
    wait_until,
    wait_until_async,
    watch,
)
from support.wire import Wire

from penstock.proto.v1 import admin_pb2

ROOT = Path(__file__).parents[2]


def ended() -> None:
    raise AssertionError("the server ended")


def test_a_controller_that_ends_at_its_start_fails_the_wait_with_its_last_lines(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path, brokers=1, start=False)
    address = cluster.controller.address
    with (
        socket.create_server((HOST, cluster.controller.port)),
        pytest.raises(AssertionError) as caught,
    ):
        cluster.start()
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("controller ended by itself: exit 2; its last lines (")
    assert f"--listen {address} cannot be used: Address already in use" in lines[1]
    assert not any(process.is_running for process in cluster.processes)


def test_a_broker_that_dies_fails_a_wait_for_something_else(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=1) as cluster:
        broker = cluster.brokers[0]
        assert broker.process is not None
        broker.process.kill()  # not by `broker.kill`: nobody told the test
        with pytest.raises(AssertionError, match="broker 0 ended by itself: exit -9") as caught:
            wait_until(lambda: False, what="something else")
        assert "(while waiting: something else)" in str(caught.value)
        broker.start()
        cluster.wait_alive({0})


@pytest.mark.parametrize("forked", [True, False])
def test_a_server_that_does_not_end_says_what_its_threads_do(tmp_path: Path, forked: bool) -> None:
    with Cluster(tmp_path, brokers=1, start=False) as cluster:
        controller = cluster.controller
        controller.forked = forked
        controller.launcher = hanging_child.LAUNCHER
        controller.environment = {hanging_child.FAULTS: str(tmp_path)}
        controller.start(wait=False)
        controller.wait_serving()
        (tmp_path / "hang").touch()
        wait_until((tmp_path / "hangs").exists, what="it hangs")
        with pytest.raises(AssertionError, match="controller did not end within") as caught:
            controller.stop(timeout_s=3.0)
    assert "Fatal Python error: Aborted" in str(caught.value)
    assert "in _hanging" in str(caught.value)


async def test_every_kind_of_wait_ends_when_what_it_watches_has_ended() -> None:
    watch(ended, ended)
    try:
        with pytest.raises(AssertionError, match="the server ended"):
            wait_until(lambda: False, what="it")
        with pytest.raises(AssertionError, match="the server ended"):
            await wait_until_async(lambda: False, what="it")
        assert wait_until(lambda: True, what="what is so already")
    finally:
        unwatch(ended)


def test_patience_is_time_of_a_machine_to_oneself() -> None:
    now_s, tasks_per_core = [0.0], 30.0
    patience = Patience(10.0, clock=lambda: now_s[0], crowd=lambda: tasks_per_core)

    def pass_by(seconds: float) -> None:
        for _ in range(int(seconds)):
            now_s[0] += 1.0
            patience.is_over()

    pass_by(240)
    assert not patience.is_over(), "of thirty tasks each got eight seconds"
    tasks_per_core = 1.0
    pass_by(3)
    assert patience.is_over()


def test_what_takes_long_is_looked_at_less_often() -> None:
    now_s = [0.0]
    patience = Patience(100.0, clock=lambda: now_s[0], crowd=lambda: 1.0)
    steps = []
    for now_s[0] in (0.1, 1.0, 5.0, 50.0):
        assert not patience.is_over()
        steps.append(patience.step_s)
    assert steps == [0.02, 0.05, 0.1, 0.1]


def test_a_machine_that_stood_still_was_no_time_to_do_anything() -> None:
    now_s = [0.0]
    patience = Patience(10.0, clock=lambda: now_s[0], crowd=lambda: 1.0)
    now_s[0] += 3_600
    assert not patience.is_over()
    now_s[0] += 3_600
    now_s[0] += 3_600
    assert not patience.is_over()
    now_s[0] += 1
    assert patience.is_over()


def test_a_child_that_does_not_end_is_told_of() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        with pytest.raises(subprocess.TimeoutExpired):
            wait_exit(child, -1.0)
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.close()
        assert wait_exit(child, 30.0) == 0


def test_a_killed_brokers_ports_are_given_to_nobody_and_free_when_the_cluster_is_closed(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, brokers=1) as cluster:
        broker = cluster.brokers[0]
        broker.kill()
        for port in (broker.port, cluster.metrics_ports[0]):
            with pytest.raises(OSError, match="in use"):
                ReservedPort(port)
        broker.start()
    ReservedPort(broker.port).close()


def test_a_topic_made_again_is_known_everywhere_when_it_was_created(tmp_path: Path) -> None:
    """Also by a broker that was asleep meanwhile, and knows the one that was deleted."""
    with Cluster(tmp_path, brokers=2) as cluster, Wire(cluster.brokers[0].address) as wire:
        cluster.create_topic("t", assignment=[[0]])
        delete = admin_pb2.DeleteTopicsRequest(topics=[admin_pb2.TopicName(topic="t")])
        for _ in range(3):
            cluster.brokers[1].pause()
            wire.admin.DeleteTopics(delete, timeout=120)
            wakes = threading.Timer(0.5, cluster.brokers[1].resume)
            wakes.start()
            made = cluster.create_topic("t", assignment=[[0]])
            wakes.join()
            seen = [cluster.topic("t", at) for at in cluster.brokers]
            assert [info.topic_id for info in seen if info is not None] == [made] * 2


def test_a_row_of_ports_is_reserved_one_by_one() -> None:
    row = reserve_row(3)
    try:
        assert [port.port for port in row] == [row[0].port + offset for offset in range(3)]
        for port in row:
            with pytest.raises(OSError, match="in use"):
                ReservedPort(port.port)
    finally:
        for port in row:
            port.close()


SUITE = """
import socket
import pytest
from support.cluster import Cluster
from support.processes import HOST

@pytest.fixture(scope="module")
def another(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("another"), brokers=0) as cluster:
        yield cluster

def test_shared(another):
    pass

def test_own(make_cluster, another):
    cluster = make_cluster(brokers=0, start=False)
    with socket.create_server((HOST, cluster.controller.port)):
        cluster.start()
        cluster.controller.wait_serving()

def test_only_shared(another):
    assert False
"""


def test_a_failed_test_shows_the_logs_of_its_own_cluster(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    options = ["-p", "no:cacheprovider", f"--rootdir={tmp_path}", f"--basetemp={tmp_path / 'b'}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "conftest", *options, "test_suite.py"],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}:{os.environ.get('PYTHONPATH', '')}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    own, shared = done.stdout.partition("_ test_only_shared _")[::2]
    assert "1 passed" in done.stdout, done.stdout
    assert "2 failed" in done.stdout, done.stdout
    assert "- controller (exit 2), " in own
    assert "cannot be used: Address already in use" in own
    assert "controller took over" not in own, "another cluster's log"
    assert "- controller (running), " in shared
    assert "controller took over" in shared
