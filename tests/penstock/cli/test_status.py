"""`penstock status` of an address: healthy is only what every live broker has confirmed."""

import json
from pathlib import Path

from support.cluster import PATIENT, Cluster
from support.waiting import wait_until
from typer.testing import CliRunner

from penstock.cli.main import app


def status(cluster: Cluster, output: str) -> tuple[int, str]:
    words = ["status", "--bootstrap", cluster.brokers[0].address, "-o", output]
    done = CliRunner().invoke(app, words)
    return done.exit_code, done.stdout


def test_a_live_broker_that_does_not_answer_is_not_healthy(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=2, controller_config=PATIENT) as cluster:
        wait_until(lambda: status(cluster, "json")[0] == 0, what="all is in sync")
        cluster.brokers[1].pause()
        try:
            code, told = status(cluster, "json")
            seen = json.loads(told)
            assert all(one["alive"] for one in seen["brokers"]), "its session is not over"
            assert (code, seen["healthy"], seen["full_disks"]) == (1, False, [])
            (unknown,) = seen["unknown_disks"]
            assert unknown["broker"] == 1
            assert unknown["problem"]
            code, text = status(cluster, "table")
            assert code == 1
            assert "Unknown disks:\n" in text
        finally:
            cluster.brokers[1].resume()
