"""A cluster per module that every scenario finds healthy, and loads on topics of their own.

`faulty` is another one, whose brokers die or run out of disk by word of the test.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cluster import PATIENT, Cluster
from support.faults import Faults, faulty_cluster, make_well
from support.load import Load, MakeLoad


@pytest.fixture(scope="module")
def module_cluster(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Cluster]:
    """`FORKED = False` in a module: its processes start as users' do. `CONTROLLER_CONFIG`: as for
    `Cluster`, on top of `PATIENT`."""
    forked = getattr(request.module, "FORKED", True)
    config = {**PATIENT, **getattr(request.module, "CONTROLLER_CONFIG", {})}
    folder = tmp_path_factory.mktemp("cluster")
    with Cluster(folder, brokers=3, controller_config=config, forked=forked) as cluster:
        yield cluster


@pytest.fixture
def cluster(module_cluster: Cluster) -> Cluster:
    """Three brokers and their controller, all running, whatever the scenario before has done."""
    for process in module_cluster.processes:
        if process.is_running:
            process.resume()
        else:
            process.start(wait=False)
    for process in module_cluster.processes:
        process.wait_serving()
    module_cluster.wait_controller()
    module_cluster.wait_alive(set(module_cluster.brokers))
    return module_cluster


@pytest.fixture
def load(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Load]:
    """A running workload with acks=ALL on six partitions, named after the test."""
    with Load(cluster, tmp_path / "history.jsonl", topic=_topic(request)) as running:
        yield running


@pytest.fixture
def make_load(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> MakeLoad:
    """Loads with other settings; they are entered by the test."""

    def make(**options: Any) -> Load:
        return Load(cluster, tmp_path / "history.jsonl", topic=_topic(request), **options)

    return make


@pytest.fixture(scope="module")
def module_faulty(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Cluster, list[Faults]]]:
    """Three brokers that die when a test says so."""
    with faulty_cluster(tmp_path_factory.mktemp("faulty")) as made:
        yield made


@pytest.fixture
def faulty(module_faulty: tuple[Cluster, list[Faults]]) -> tuple[Cluster, list[Faults]]:
    """All of them well and there, whatever the test before has done."""
    make_well(*module_faulty)
    return module_faulty


def _topic(request: pytest.FixtureRequest) -> str:
    """A topic name that tells which test it belongs to."""
    return re.sub(r"[^a-zA-Z0-9-]+", "-", request.node.name.removeprefix("test_")).strip("-")
