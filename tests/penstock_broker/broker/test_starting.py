"""Starting and stopping: what a broker refuses, in one line, and what it keeps."""

import json
import shutil
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.channels import patient_channel
from support.cluster import Cluster
from support.processes import HOST, ReservedPort, ServerProcess
from support.waiting import wait_until
from support.wire import Wire

from penstock.client import Admin
from penstock.errors import ErrorCode, PenstockError
from penstock.proto.v1.broker_pb2 import MetadataRequest
from penstock_broker.broker.main import _read_rack

MakeCluster = Callable[..., Cluster]


def run_broker(*arguments: str, optimize: bool = False) -> tuple[int, str]:
    """Runs a broker that is expected to end by itself; exit code and stderr."""
    command = [sys.executable, *(["-O"] if optimize else []), "-m", "penstock_broker", "broker"]
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stderr


def options(path: Path, **changed: str) -> list[str]:
    values = {
        "broker-id": "0",
        "data-dir": str(path / "data"),
        "listen": f"{HOST}:0",
        "controllers": f"{HOST}:1",
        **{key.replace("_", "-"): value for key, value in changed.items()},
    }
    return [part for key, value in values.items() for part in (f"--{key}", value)]


def assert_one_line(text: str, *words: str) -> None:
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    assert lines[0].startswith("penstock broker: ")
    for word in words:
        assert word in lines[0]


@pytest.mark.parametrize("option", ["listen", "replication_listen", "stream_listen"])
def test_a_port_in_use_is_refused_in_one_line(tmp_path: Path, option: str) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, text = run_broker(*options(tmp_path, **{option: f"{HOST}:{port}"}))
    assert code == 2
    assert_one_line(text, f"--{option.replace('_', '-')}", str(port), "in use")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"listen": "nonsense"}, ["--listen", "host:port"]),
        ({"controllers": "a:b"}, ["--controllers", "host:port"]),
        ({"broker_id": "-3"}, ["--broker-id", "-3"]),
        ({"replication_listen": "9096"}, ["--replication-listen", "host:port"]),
        ({"stream_listen": "9097"}, ["--stream-listen", "host:port"]),
        ({"external_listen": f"{HOST}:1"}, ["--external-listen", "--external-advertise"]),
        ({"config": "cache.byte=5"}, ["cache.byte", "cache.bytes"]),
        ({"config": "cache.bytes=many"}, ["cache.bytes", "whole number"]),
    ],
)
def test_bad_options_are_refused_in_one_line(
    tmp_path: Path, changed: dict[str, str], words: list[str]
) -> None:
    code, text = run_broker(*options(tmp_path, **changed))
    assert code == 2
    assert_one_line(text, *words)


def test_python_without_assertions_is_refused(tmp_path: Path) -> None:
    code, text = run_broker(*options(tmp_path), optimize=True)
    assert code == 2
    assert_one_line(text, "-O")


def test_two_brokers_on_one_directory_are_refused(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=1)
    second = cluster.new_broker(0, data=cluster.data_dir(0))
    second.log = cluster.path / "second.log"
    second.start(wait=False)
    assert second.wait_end() == 2
    assert_one_line(second.log_text(), "in use", str(cluster.data_dir(0)))
    assert cluster.brokers[0].is_serving()


def test_another_brokers_directory_is_refused(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=1)
    cluster.brokers[0].stop()
    other = cluster.new_broker(1, data=cluster.data_dir(0))
    other.start(wait=False)
    assert other.wait_end() == 2
    assert_one_line(other.log_text(), "belongs to broker 0")


def test_another_clusters_directory_is_refused(make_cluster: MakeCluster) -> None:
    first, second = make_cluster(brokers=1), make_cluster(brokers=1)
    second.brokers[0].stop()
    moved = second.path / "moved"
    first.brokers[0].stop()
    shutil.copytree(first.data_dir(0), moved)
    stranger = second.new_broker(0, data=moved)
    stranger.log = second.path / "stranger.log"
    stranger.start(wait=False)
    assert stranger.wait_end() == 2
    last = stranger.log_text().strip().splitlines()[-1]
    assert last.startswith("penstock broker: ")
    assert "cluster" in last
    assert "Traceback" not in stranger.log_text()


def test_a_full_disk_refuses_writes_and_serves_reads(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=1)
    cluster.create_topic("t")
    broker = cluster.brokers[0]
    with Wire(broker.address) as wire:
        wire.produce("t", [b"a"])
    assert broker.stop() == 0
    broker.start("--config", f"disk.reserve.bytes={2**62}")
    cluster.wait_leaders("t")
    with Wire(broker.address) as wire:
        with pytest.raises(PenstockError) as refused:
            wire.produce("t", [b"b"])
        assert refused.value.code is ErrorCode.DISK_FULL
        assert refused.value.retriable
        assert "disk.reserve.bytes" in str(refused.value)
        assert wire.read_all("t") == [b"a"]
    broker.stop()
    broker.start()
    cluster.wait_leaders("t")
    with Wire(broker.address) as wire:
        wire.produce("t", [b"c"])
        assert wire.read_all("t") == [b"a", b"c"]


def test_a_broker_without_a_controller_says_so_and_waits(tmp_path: Path) -> None:
    port = ReservedPort()
    broker = ServerProcess(
        "lonely",
        ["broker", *options(tmp_path, listen=port.address)],
        tmp_path / "lonely.log",
        port,
    )
    try:
        broker.start(wait=False)
        wait_until(lambda: "no controller session" in broker.log_text(), what="it says so")
        assert not broker.is_serving()
        with Wire(broker.address) as wire, pytest.raises(PenstockError) as refused:
            wire.latest("t")
        assert refused.value.code is ErrorCode.LEADER_NOT_AVAILABLE
        assert refused.value.retriable
        assert broker.stop() == 0
    finally:
        broker.close()


def test_everything_is_there_after_a_clean_stop_and_after_a_kill(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(brokers=1)
    cluster.create_topic("t")
    broker = cluster.brokers[0]
    ends: list[Callable[[], object]] = [broker.stop, broker.kill, broker.stop]
    for number, end in enumerate(ends):
        with Wire(broker.address) as wire:
            wire.produce("t", [b"%d" % number])
        end()
        broker.start()
        cluster.wait_leaders("t")
    with Wire(broker.address) as wire:
        assert wire.read_all("t") == [b"0", b"1", b"2"]
        assert wire.log("t").high_watermark == 3


def logged(process: ServerProcess) -> list[dict[str, Any]]:
    """The lines of its log, as far as they are whole."""
    lines = process.log_text().splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


def told(process: ServerProcess, event: str) -> str:
    """The address that a line of its log tells."""

    def found() -> str:
        return next((line["address"] for line in logged(process) if line["event"] == event), "")

    return wait_until(found, what=f"{process.name} says {event!r}", timeout_s=40.0)


STREAM_LISTENERS = ("PENSTOCK_REPLICATION_LISTEN", "PENSTOCK_STREAM_LISTEN")


def test_servers_that_may_take_any_port_tell_which_and_advertise_it(tmp_path: Path) -> None:
    anywhere = ["--listen", f"{HOST}:0", "--metrics-listen", f"{HOST}:0"]
    metadata = ["--metadata-dir", str(tmp_path / "metadata")]
    controller = ServerProcess(
        "controller", ["controller", *metadata, *anywhere], tmp_path / "controller.log"
    )
    started = [controller]
    try:
        controller.start(wait=False)
        known = ["--controllers", told(controller, "controller listening")]
        for number in range(3):
            own = ["--broker-id", str(number), "--data-dir", str(tmp_path / f"{number}")]
            log = tmp_path / f"broker-{number}.log"
            started.append(ServerProcess(log.stem, ["broker", *own, *known, *anywhere], log))
            started[-1].environment = dict.fromkeys(STREAM_LISTENERS[:number], f"{HOST}:0")
            started[-1].start(wait=False)
        addresses = [told(broker, "listening") for broker in started[1:]]
        with Admin(addresses) as admin:

            def advertised() -> list[str]:
                brokers = admin.describe_cluster().brokers
                return sorted(f"{each.host}:{each.port}" for each in brokers if each.alive)

            wait_until(lambda: advertised() == sorted(addresses), what="all are known")
        with Wire(addresses[0]) as wire:
            brokers = wire.call(wire.data.Metadata, MetadataRequest()).brokers
            streams = [(one.replication_port > 0, one.stream_port > 0) for one in brokers]
        assert streams == [(False, False), (True, False), (True, True)]
        for process in started:
            page = f"http://{told(process, 'serving metrics')}/metrics"
            with urllib.request.urlopen(page, timeout=120) as answer:
                assert b"penstock_" in answer.read()
        said_by = [{line["broker"] for line in logged(broker)} for broker in started[1:]]
        assert said_by == [{0}, {1}, {2}]
    finally:
        for process in started:
            process.close()


# ---------------------------------------------------------------- the rack


def test_a_rack_file_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "rack"
    threading.Timer(0.3, path.write_text, ("zone-a\n",)).start()
    assert _read_rack(path) == "zone-a"


def test_without_a_rack_in_the_file_the_broker_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock_broker.broker.main._RACK_WAIT_S", 0.3)
    (tmp_path / "rack").write_text("\n")
    assert _read_rack(tmp_path / "rack") == ""
    assert "no rack in the file" in caplog.text


def test_a_rack_is_told_in_one_way_only(tmp_path: Path) -> None:
    code, text = run_broker(*options(tmp_path, rack="a", rack_file=str(tmp_path / "rack")))
    assert code == 2
    assert_one_line(text, "--rack", "--rack-file")
    code, text = run_broker(*options(tmp_path, rack_file=str(tmp_path)))
    assert code == 2
    assert_one_line(text, "--rack-file", "cannot be read")


def test_a_controller_that_dies_does_not_hold_up_a_stop(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=1, broker_config={"shutdown.timeout.ms": "60000"})
    broker = cluster.brokers[0]
    cluster.controller.pause()  # it hears that the broker wants to stop, and never answers
    broker.terminate()
    cluster.controller.kill()
    assert broker.wait_end(timeout_s=20) == 0
    assert '"leaderships_handed_over": false' in broker.log_text()


# ---------------------------------------------------------------- probes


def says(address: str, service: str) -> int:
    with patient_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        return int(health_pb2_grpc.HealthStub(channel).Check(request, timeout=120).status)


def test_probes_tell_waiting_from_serving_and_do_not_need_a_controller(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(brokers=1, start=False)
    broker = cluster.brokers[0]
    status = health_pb2.HealthCheckResponse
    broker.start(wait=False)
    wait_until(lambda: "listening" in broker.log_text(), what="it listens", timeout_s=40.0)
    assert says(broker.address, "penstock.liveness") == status.SERVING
    assert says(broker.address, "") == status.NOT_SERVING
    cluster.controller.start()
    broker.wait_serving()
    cluster.controller.kill()
    wait_until(lambda: "controller session ended" in broker.log_text(), what="it is alone")
    assert says(broker.address, "penstock.liveness") == status.SERVING
    assert says(broker.address, "") == status.SERVING
