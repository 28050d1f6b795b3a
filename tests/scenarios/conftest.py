"""A cluster per module that every scenario finds healthy, and loads on topics of their own."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cluster import Cluster
from support.load import Load, MakeLoad

SESSION_TIMEOUT_MS = 2_500
"""Shorter than the longest freeze of the random harm; other tests' load must not reach it."""


@pytest.fixture(scope="module")
def module_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    quick = {"broker.session.timeout.ms": str(SESSION_TIMEOUT_MS)}
    folder = tmp_path_factory.mktemp("cluster")
    with Cluster(folder, brokers=3, controller_config=quick) as cluster:
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
def make_load(
    cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[MakeLoad]:
    """Loads with other settings; they are entered by the test."""

    def make(**options: Any) -> Load:
        return Load(cluster, tmp_path / "history.jsonl", topic=_topic(request), **options)

    return make


def _topic(request: pytest.FixtureRequest) -> str:
    """A topic name that tells which test it belongs to."""
    return re.sub(r"[^a-zA-Z0-9-]+", "-", request.node.name.removeprefix("test_")).strip("-")
