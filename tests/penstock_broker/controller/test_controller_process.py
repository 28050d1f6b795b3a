"""The controller as a process: start, clean stop, kill -9, and everything it must refuse."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.channels import patient_channel
from support.processes import HOST, ReservedPort, ServerProcess

from penstock.proto.v1 import admin_pb2
from penstock.proto.v1.admin_pb2_grpc import AdminServiceStub
from penstock_broker.controller.metadata_store.interface import Put
from penstock_broker.controller.metadata_store.local import LocalMetadataStore

Make = Callable[..., ServerProcess]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Controller processes on directories of this test."""
    made: list[ServerProcess] = []

    def make_one(
        *extra: str, port: ReservedPort | None = None, directory: str = "metadata"
    ) -> ServerProcess:
        port = port or ReservedPort()
        arguments = ["controller", f"--metadata-dir={tmp_path / directory}"]
        arguments += [f"--listen={port.address}", *extra]
        log = tmp_path / f"controller-{len(made)}.log"
        made.append(ServerProcess("controller", arguments, log, port))
        return made[-1]

    yield make_one
    for process in made:
        process.close()


def describe(process: ServerProcess) -> admin_pb2.DescribeClusterResponse:
    with patient_channel(process.address) as channel:
        return AdminServiceStub(channel).DescribeCluster(
            admin_pb2.DescribeClusterRequest(), timeout=120.0
        )


def refusal(process: ServerProcess) -> str:
    """The one line of a process that must exit with 2."""
    process.start(wait=False)
    assert process.wait_end(60.0) == 2, process.tail()
    lines = [line for line in process.log_text().splitlines() if not line.startswith("{")]
    assert len(lines) == 1, process.log_text()
    return lines[0]


def test_a_controller_stops_cleanly_on_sigterm_and_logs_json(make: Make) -> None:
    controller = make("--cluster-id=my-cluster")
    controller.start()
    assert describe(controller).cluster_id == "my-cluster"
    assert controller.stop() == 0
    lines = [json.loads(line) for line in controller.log_text().splitlines()]
    assert "controller took over" in [line["event"] for line in lines]
    assert lines[-1]["event"] == "controller stopped"


def test_kill_9_loses_nothing_and_raises_the_epoch(make: Make) -> None:
    controller = make()
    controller.start()
    before = describe(controller)
    controller.kill()
    controller.start()
    after = describe(controller)
    assert after.cluster_id == before.cluster_id
    assert after.controller_epoch == before.controller_epoch + 1
    assert after.metadata_version > before.metadata_version


def test_metrics_tell_who_is_active(make: Make, reserve: Callable[[], ReservedPort]) -> None:
    address = reserve().address
    controller = make(f"--metrics-listen={address}")
    controller.start()
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=120) as answer:
        text = answer.read().decode()
    assert "penstock_controller_active 1.0" in text
    assert "penstock_controller_epoch 1.0" in text
    assert "penstock_controller_offline_partitions 0.0" in text


def test_a_second_controller_on_the_directory_is_refused(make: Make) -> None:
    make().start()
    assert "in use by another controller" in refusal(make())


def test_a_port_in_use_is_refused(make: Make) -> None:
    port = ReservedPort()
    first = make(port=port)
    first.start()
    line = refusal(make(port=port, directory="other"))
    assert f"--listen {first.address} cannot be used" in line
    assert "in use" in line


@pytest.mark.parametrize(
    ("extra", "mention"),
    [
        (["--config=num.partition=1"], "did you mean 'num.partitions'"),
        (["--config=novalue"], "KEY=VALUE"),
        (["--config=min.insync.replicas=0"], "min.insync.replicas"),
        (["--metrics-listen=nonsense"], "HOST:PORT"),
    ],
)
def test_settings_that_cannot_be_right_are_refused(
    make: Make, extra: list[str], mention: str
) -> None:
    assert mention in refusal(make(*extra))


def test_the_directory_of_another_cluster_is_refused(make: Make) -> None:
    first = make("--cluster-id=one")
    first.start()
    first.stop()
    line = refusal(make("--cluster-id=two"))
    assert "one" in line
    assert "two" in line


def test_unreadable_metadata_is_refused_and_left_alone(make: Make, tmp_path: Path) -> None:
    store = LocalMetadataStore(tmp_path / "metadata")
    store.write([[Put("topic/t", "{not json", None)]])
    store.close()
    assert "topic/t is unreadable" in refusal(make())
    store = LocalMetadataStore(tmp_path / "metadata")
    assert store.read_all()["topic/t"].text == "{not json"
    store.close()


def bad_arguments(*arguments: str, optimize: bool = False) -> str:
    """The one line of a controller whose command line cannot be right."""
    python = [sys.executable, *(["-O"] if optimize else [])]
    command = [*python, "-m", "penstock_broker", "controller", f"--listen={HOST}:0"]
    environment = {**os.environ, "KUBECONFIG": "/nowhere/kubeconfig"}
    environment.pop("KUBERNETES_SERVICE_HOST", None)
    done = subprocess.run(
        [*command, *arguments],
        capture_output=True, text=True, timeout=300, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 2, done
    lines = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert len(lines) == 1, done.stderr
    return lines[0]


KUBERNETES = ("--metadata=kubernetes", "--cluster=flights", "--namespace=shop")


@pytest.mark.parametrize(
    ("arguments", "mention"),
    [
        ((), "exactly one of --metadata-dir"),
        ((*KUBERNETES, "--metadata-dir=/tmp/x"), "exactly one of --metadata-dir"),
        (("--metadata-dir=/tmp/x", "--cluster=flights"), "--cluster is for --metadata=kubernetes"),
        (("--metadata=kubernetes", "--cluster=flights"), "needs --cluster NAME and --namespace"),
        ((*KUBERNETES[:2], "--namespace=Shop"), "--namespace is 'Shop'"),
        ((*KUBERNETES, "--owner-name=x"), "--owner-name needs --owner-uid"),
        (KUBERNETES, "set KUBECONFIG"),
    ],
)
def test_where_the_metadata_is_must_be_clear(arguments: tuple[str, ...], mention: str) -> None:
    assert mention in bad_arguments(*arguments)


def test_python_without_assertions_is_refused(tmp_path: Path) -> None:
    metadata = tmp_path / "metadata"
    assert "-O" in bad_arguments(f"--metadata-dir={metadata}", optimize=True)
    assert not metadata.exists(), "nothing was touched"
