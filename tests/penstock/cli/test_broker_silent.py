"""`penstock broker list` and `describe` show what is known while a live broker does not answer."""

import json
from pathlib import Path

from support.cluster import PATIENT, Cluster
from support.waiting import wait_until
from typer.testing import CliRunner

from penstock.cli.main import app


def test_a_broker_that_does_not_answer_hides_no_other(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=2, controller_config=PATIENT) as cluster:
        where = ["--bootstrap", cluster.brokers[0].address]
        cluster.create_topic("flights")
        listed = [*("broker", "list", "-o", "json"), *where]
        wait_until(lambda: CliRunner().invoke(app, listed).exit_code == 0, what="both answer")
        cluster.brokers[1].pause()
        try:
            done = CliRunner().invoke(app, listed)
            zero, one = json.loads(done.stdout)
            assert done.exit_code == 1
            assert zero["free_bytes"] > 0
            assert zero["problem"] is None
            assert (one["alive"], one["free_bytes"], one["size_bytes"]) == (True, None, None)
            assert one["replicas"] > 0
            assert one["problem"]
            done = CliRunner().invoke(app, ["broker", "describe", "0", *where])
            assert (done.exit_code, "Free" in done.stdout) == (0, True)
            done = CliRunner().invoke(app, ["broker", "list", *where])
            assert done.exit_code == 1
            assert "penstock: broker 1 does not say what it stores: " in done.stderr
        finally:
            cluster.brokers[1].resume()
