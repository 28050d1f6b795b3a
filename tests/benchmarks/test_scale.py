"""The benchmark of big clusters runs, small, and every figure with a limit keeps it."""

import json

import pytest

from benchmarks import scale
from penstock.core.types import BrokerId

OF_THE_MACHINE = {"s", "cores", "MiB"}
"""Units that depend on what else runs, in this process too."""


def test_it_prints_a_ratio_for_everything_that_has_a_limit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    scale.measure(scale.QUICK[0])
    figures = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    limited = [one for one in figures if one["vs"] is not None]
    assert len(limited) > 10
    assert all(one["ratio"] < 1 for one in limited if one["unit"] not in OF_THE_MACHINE), limited


def test_the_death_of_a_broker_writes_only_topics_that_it_had_replicas_of() -> None:
    cluster = scale.Cluster(scale.Size(20, 400, 0))
    cluster.load()
    cluster.register()
    before = cluster.writes
    cluster.kill()
    concerned = [
        topic
        for topic in cluster.machine.stored.topics.values()
        if any(BrokerId(19) in one.state.replicas for one in topic.partitions)
    ]
    assert cluster.writes - before == len(concerned) + 1, "and the cluster's document"
    assert all(BrokerId(19) not in one.state.isr for topic in concerned for one in topic.partitions)
