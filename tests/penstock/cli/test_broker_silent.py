"""What looks at brokers shows what is known while some of them, or the controller, are silent."""

import json
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.cluster import Cluster
from support.waiting import wait_until
from typer.testing import CliRunner

from penstock.cli.at_once import describe_soon
from penstock.cli.main import app
from penstock.client import EARLIEST, Admin, ClusterDescription, TopicPartition
from penstock.errors import ClusterError, MisuseError, UnreachableError

NEVER = {"broker.session.timeout.ms": "600000"}
"""A broker that is frozen stays alive for the controller."""


def run(cluster: Cluster, *words: str) -> Any:
    return CliRunner().invoke(app, [*words, "--bootstrap", cluster.bootstrap])


@pytest.fixture(autouse=True)
def _less_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cli.connect.ANSWER_MS", 4_000)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    path = tmp_path_factory.mktemp("silent")
    with Cluster(path, brokers=3, controller_config=NEVER) as made:
        made.create_topic("flights", assignment=[[0, 1, 2]])
        made.create_topic("answered", assignment=[[2, 0, 1]])
        listed = ("broker", "list", "-o", "json")
        wait_until(lambda: run(made, *listed).exit_code == 0, what="all answer")
        yield made


@pytest.fixture
def frozen(cluster: Cluster) -> Iterator[Cluster]:
    """Two of three brokers, the first bootstrap address among them."""
    for one in (0, 1):
        cluster.brokers[one].pause()
    try:
        yield cluster
    finally:
        for one in (0, 1):
            cluster.brokers[one].resume()


@pytest.fixture
def without_controller(cluster: Cluster) -> Iterator[Cluster]:
    def reachable() -> bool:
        with Admin(cluster.bootstrap) as admin:
            return admin.describe_cluster().controller_reachable

    cluster.controller.kill()
    try:
        wait_until(lambda: not reachable(), what="brokers notice")
        yield cluster
    finally:
        cluster.controller.start()
        wait_until(reachable, what="a controller again")


def test_brokers_that_do_not_answer_hide_no_other(frozen: Cluster) -> None:
    done = run(frozen, "broker", "list", "-o", "json")
    assert done.exit_code == 1
    *silent, heard = json.loads(done.stdout)
    assert heard["free_bytes"] > 0
    assert heard["problem"] is None
    for one in silent:
        assert (one["alive"], one["free_bytes"], one["size_bytes"]) == (True, None, None)
        assert one["replicas"] > 0
        assert one["problem"].startswith("what it stores is not known: ")
    for one in (0, 1):
        assert f"penstock: broker {one} does not say what it stores: " in done.stderr
    done = run(frozen, "broker", "describe", "2")
    assert (done.exit_code, "Free" in done.stdout) == (0, True)


def test_a_broker_that_only_the_controller_calls_alive_says_nothing_yet(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def behind(admin: Admin) -> ClusterDescription:
        seen = describe_soon(admin)
        came = tuple(replace(one, alive=one.broker_id != 1) for one in seen.brokers)
        return replace(seen, brokers=came)

    monkeypatch.setattr("penstock.cli.move_facts.describe_soon", behind)
    done = run(cluster, "broker", "list", "-o", "json")
    assert done.exit_code == 1
    row = json.loads(done.stdout)[1]
    assert (row["alive"], row["free_bytes"], row["size_bytes"]) == (True, None, None)
    assert "what it stores is not known: it has just come" in row["problem"]
    assert "penstock: broker 1 does not say what it stores: it has just come" in done.stderr


def test_log_dirs_shows_those_that_answer(frozen: Cluster) -> None:
    done = run(frozen, "log-dirs", "-o", "json")
    assert done.exit_code == 1
    seen = json.loads(done.stdout)
    assert [one["broker"] for one in seen["brokers"]] == [2]
    assert {one["broker"] for one in seen["logs"]} == {2}
    assert [one["broker"] for one in seen["unknown"]] == [0, 1]
    assert "penstock: broker 0 does not say what it stores: " in done.stderr
    done = run(frozen, "log-dirs", "--broker", "2", "-o", "json")
    assert (done.exit_code, json.loads(done.stdout)["unknown"]) == (0, [])


def test_topics_have_the_sizes_that_leaders_tell(frozen: Cluster) -> None:
    done = run(frozen, "topic", "list", "-o", "json")
    assert {one["topic"]: one["size_bytes"] for one in json.loads(done.stdout)} == {
        "flights": None,
        "answered": 0,
    }
    assert done.exit_code == 0


def test_what_is_lost_may_be_more_than_was_told(frozen: Cluster) -> None:
    done = run(frozen, "partitions", "accept-loss", "-o", "json")
    assert (done.exit_code, json.loads(done.stdout)) == (1, [])
    assert "penstock: broker 0 does not say what it stores: " in done.stderr


def test_the_copy_rates_are_shown_that_are_told(frozen: Cluster) -> None:
    done = run(frozen, "partitions", "throttle", "-o", "json")
    assert [one["broker"] for one in json.loads(done.stdout)["brokers"]] == [2]
    assert done.exit_code == 1


def test_the_scrubs_are_shown_of_those_that_answer(frozen: Cluster) -> None:
    done = run(frozen, "scrub", "status", "-o", "json")
    assert (done.exit_code, [one["broker"] for one in json.loads(done.stdout)]) == (1, [2])
    for one in (0, 1):
        assert f"penstock: broker {one} does not say how far it has read: " in done.stderr
    done = run(frozen, "scrub", "status", "--broker", "2", "-o", "json")
    assert (done.exit_code, [one["broker"] for one in json.loads(done.stdout)]) == (0, [2])
    done = run(frozen, "scrub", "status", "--broker", "7")
    assert (done.exit_code, "there is no broker 7; there are 0, 1, 2" in done.stderr) == (1, True)


def test_the_admin_asks_the_named_brokers_for_their_scrubs_or_all_that_live(
    cluster: Cluster,
) -> None:
    with Admin(cluster.bootstrap) as admin:
        assert [one.broker_id for one in admin.describe_scrub()] == [0, 1, 2]
        assert [one.broker_id for one in admin.describe_scrub([2, 0])] == [0, 2]
        assert (admin.describe_scrub([]), admin.describe_logs(broker_ids=[])) == ([], [])
        with pytest.raises(MisuseError, match="no such brokers: 7"):
            admin.describe_scrub([7])


def test_a_list_that_would_not_be_complete_names_the_brokers_that_are_silent(
    frozen: Cluster,
) -> None:
    begun = time.monotonic()
    with (
        Admin(frozen.bootstrap, request_timeout_ms=4_000, connect_timeout_ms=4_000) as admin,
        pytest.raises(UnreachableError, match=r"^no answer of broker 0, 1 \(") as silent,
    ):
        admin.list_groups()
    assert "what it coordinates would be missing" in silent.value.message
    assert time.monotonic() - begun < 60


def test_a_leader_that_is_silent_is_named_by_its_partition(frozen: Cluster) -> None:
    place = TopicPartition("flights", 0)
    with (
        Admin(frozen.bootstrap, request_timeout_ms=4_000, connect_timeout_ms=4_000) as admin,
        pytest.raises(ClusterError, match=r"^the leader of flights/0 does not answer: "),
    ):
        admin.list_offsets({place: EARLIEST})


def test_what_moves_is_not_waited_for_as_long_as_for_a_change(
    without_controller: Cluster,
) -> None:
    done = run(without_controller, "partitions", "status")
    assert done.exit_code == 1
    assert "has no session with a controller" in done.stderr
    assert "(tried for 4 s)" in done.stderr


def test_a_bundle_has_what_those_say_that_answer(frozen: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "all.zip"
    done = run(frozen, "report", "-f", str(file), "-o", "json")
    assert done.exit_code == 0, done.output
    with zipfile.ZipFile(file) as bundle:
        found = {name: bundle.read(name).decode() for name in bundle.namelist()}
    assert {one["broker"] for one in json.loads(found["log-dirs.json"])["logs"]} == {2}
    assert list(json.loads(found["broker-configs.json"])) == ["2"]
    assert [one["broker_id"] for one in json.loads(found["scrub.json"])] == [2]
    assert "broker 0 does not say what it stores: " in found["errors.txt"]
    assert "broker 1 does not say how far it has read: " in found["errors.txt"]


def test_without_a_controller_brokers_are_listed(without_controller: Cluster) -> None:
    done = run(without_controller, "broker", "list", "-o", "json")
    assert done.exit_code == 1
    rows = json.loads(done.stdout)
    assert [one["broker"] for one in rows] == [0, 1, 2]
    for one in rows:
        assert one["free_bytes"] > 0
        assert one["replicas"] > 0
        assert one["version"] is None
        assert one["problem"].startswith("cordons, versions and moves are not known: ")
    done = run(without_controller, "broker", "list")
    assert done.stdout.count("unknown") == 6, "the cordon and the version of each"
    assert done.stderr.startswith("penstock: cordons, versions and moves are not known: ")
    done = run(without_controller, "broker", "describe", "1", "-o", "json")
    assert (done.exit_code, json.loads(done.stdout)["moves"]) == (1, None)
    assert run(without_controller, "log-dirs").exit_code == 0, "brokers know that"
