"""The commands of examples/groups, as a newcomer runs them, on fewer flights."""

import os
import re
import subprocess
import sys
from pathlib import Path

from support.cluster import Cluster

from penstock.client import Admin, TopicPartition

ROOT = Path(__file__).resolve().parents[2]
COUNT = 3_000


def run(cluster: Cluster, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PENSTOCK_BOOTSTRAP": cluster.bootstrap},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_queue_and_a_topic(shared_broker: Cluster) -> None:
    forever = {"retention.ms": "-1"}  # as in cluster.yaml: the flights are of 2013
    shared_broker.create_topic("flights", partitions=6, configs=forever)
    shared_broker.create_topic("flights.dead")
    at = ("--bootstrap", shared_broker.bootstrap)
    assert "3,000 flights" in run(shared_broker, "examples.groups.load", *at, "--count", str(COUNT))
    out = run(shared_broker, "examples.groups.delays", *at, "--exit")
    summary = next(line for line in out.splitlines() if line.startswith("worked on"))
    handled, dead = (
        int(n.replace(",", "")) for n in re.findall("[0-9][0-9,]*[0-9]|[0-9]", summary)
    )
    assert handled + dead == COUNT
    assert dead > 0, "some flights never left"
    with Admin(shared_broker.bootstrap) as admin:
        lags = admin.group_lag("delays")
        assert sum(lag.records or 0 for lag in lags.values()) == 0
        assert lags.keys() == {TopicPartition("flights", number) for number in range(6)}
    for group in ("audit", "dashboard"):
        lines = run(shared_broker, "penstock.cli", "consume", "flights", "-g", group, "-e")
        assert len(lines.splitlines()) == COUNT
    assert run(shared_broker, "penstock.cli", "consume", "flights", "-g", "audit", "-e") == ""
