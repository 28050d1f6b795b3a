"""`kubectl penstock drain` through a real API server, on brokers that run."""

import json
import subprocess
from collections.abc import Iterator

import pytest
from support.apiserver import ApiServer
from support.reached import Reachable, node_of, reached
from support.waiting import wait_until

from penstock.client import Admin


@pytest.fixture(scope="module")
def reachable(
    api_server: ApiServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Reachable]:
    """Three brokers; `lone` has no replica but the one on broker 1."""
    with reached(api_server, tmp_path_factory.mktemp("drain"), 3, replicate=True) as found:
        found.cluster.create_topic("t", assignment=[[0, 1, 2], [1, 2, 0], [2, 0, 1]])
        found.cluster.create_topic("lone", assignment=[[1]])
        yield found


@pytest.fixture
def admin(reachable: Reachable) -> Iterator[Admin]:
    """Leaderships are where they belong before each test."""
    with Admin(reachable.cluster.bootstrap) as found:
        wait_until(lambda: leaders(found) == [0, 1, 2, 1], what="preferred leaders lead")
        yield found


def leaders(admin: Admin) -> list[int]:
    """Of the three partitions of `t`, and of `lone`."""
    topics = admin.describe_topics(["t", "lone"])
    return [one.leader for name in ("t", "lone") for one in topics[name].partitions]


def in_sync(admin: Admin, broker: int) -> bool:
    """Whether it is in every ISR of `t`."""
    return all(broker in one.isr for one in admin.describe_topics(["t"])["t"].partitions)


def drain(reachable: Reachable, *words: object, code: int = 0) -> tuple[str, str]:
    """Its output and what it complained about; it must end with `code`."""
    process: subprocess.Popen[bytes] = reachable.start(
        "drain", "flights", "-n", reachable.scene.namespace, *words, cluster=False
    )
    try:
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == code, err.decode()
    return out.decode(), err.decode()


def test_leaderships_leave_a_node_and_stay_away_until_it_is_taken_back(
    reachable: Reachable, admin: Admin
) -> None:
    node = node_of(reachable.scene, 1)
    shown, _ = drain(reachable, "--node", node, "--dry-run", "-o", "json")
    expected = {"broker": 1, "node": node, "leads": 2, "only_it_can_lead": 1}
    assert json.loads(shown) == [expected]
    assert not any(one.cordon for one in admin.describe_moves().brokers)

    shown, _ = drain(reachable, "--node", node, "-o", "json")
    assert json.loads(shown) == [{**expected, "leads": 1}]
    # What this client is told by its broker may come a moment after what the command was told.
    wait_until(lambda: leaders(admin)[1] != 1, what="another broker leads")
    assert leaders(admin)[3] == 1, "a partition must not be left without a leader"
    [cordon] = [one.cordon for one in admin.describe_moves().brokers if one.cordon]
    assert (cordon.leadership, cordon.placement) == (True, False)
    assert cordon.by == "kubectl penstock drain"

    tried, _ = drain(reachable, "--node", node, "--cancel", "--dry-run")
    assert tried == "could be uncordoned: 1\n"
    assert any(one.cordon for one in admin.describe_moves().brokers), "a dry run"
    drain(reachable, "--node", node, "--cancel")
    wait_until(lambda: leaders(admin) == [0, 1, 2, 1], what="the leaderships are back")


def test_two_brokers_do_not_hand_leaderships_to_each_other(
    reachable: Reachable, admin: Admin
) -> None:
    shown, _ = drain(reachable, "--broker", 0, "--broker", 2, "-o", "json")
    assert [one["leads"] for one in json.loads(shown)] == [0, 0]
    wait_until(lambda: set(leaders(admin)) == {1}, what="the third broker leads everything")
    drain(reachable, "--broker", 0, "--broker", 2, "--cancel")


def test_a_cordon_for_placement_is_kept(reachable: Reachable, admin: Admin) -> None:
    reachable.ok("broker", "cordon", 2, "--why", "slow disk")
    drain(reachable, "--broker", 2)
    [cordon] = [one.cordon for one in admin.describe_moves().brokers if one.cordon]
    assert (cordon.leadership, cordon.placement, cordon.why) == (True, True, "slow disk")
    drain(reachable, "--broker", 2, "--cancel")


def test_data_that_fits_nowhere_else_stays_and_nothing_is_cordoned(
    reachable: Reachable, admin: Admin
) -> None:
    _, refused = drain(reachable, "--broker", 1, "--data", "--yes", code=1)
    assert "nothing can be moved" in refused
    assert "Traceback" not in refused
    assert not any(one.cordon for one in admin.describe_moves().brokers)


def test_a_drain_of_a_managed_broker_says_that_it_stays_cordoned(reachable: Reachable) -> None:
    reachable.ok("topic", "delete", "t", "--yes")
    try:
        out = reachable.ok("broker", "drain", 2, "--yes")
    finally:
        reachable.ok("broker", "uncordon", 2)
        reachable.cluster.create_topic("t", assignment=[[0, 1, 2], [1, 2, 0], [2, 0, 1]])
    assert "broker 2 stays cordoned until: penstock broker uncordon 2; the operator does" in out


def test_a_managed_broker_is_forgotten_by_an_annotation(reachable: Reachable, admin: Admin) -> None:
    process = reachable.start("broker", "forget", 2, "--yes")
    try:
        _, told = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 1
    refused = told.decode()
    assert "once spec.brokers is lower" in refused
    assert (
        f"kubectl annotate cluster.penstock.dev/flights -n {reachable.scene.namespace} "
        "penstock.dev/forget-broker=2; " in refused
    )
    assert "penstock.dev/replace-volume=2\n" in refused
    assert 2 in [one.broker_id for one in admin.describe_moves().brokers]


def test_a_drain_is_taken_back_while_its_broker_is_away(reachable: Reachable, admin: Admin) -> None:
    broker = reachable.cluster.brokers[2]
    drain(reachable, "--broker", 2)
    broker.kill()
    try:
        wait_until(lambda: not in_sync(admin, 2), what="broker 2 is in no ISR")
        drain(reachable, "--broker", 2, "--cancel")
        assert not any(one.cordon for one in admin.describe_moves().brokers)
    finally:
        broker.start()
        wait_until(lambda: in_sync(admin, 2), what="broker 2 is in every ISR")
    drain(reachable, "--broker", 2, "--cancel")
    wait_until(lambda: leaders(admin)[2] == 2, what="its leadership is back")


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ((), 2, "give --node or --broker"),
        (("--node", "n", "--broker", "1"), 2, "give --node or --broker"),
        (("--broker", "1", "--cancel", "--data"), 2, "--cancel does not go with --data"),
        (("--broker", "1", "--data", "-o", "json"), 2, "give --yes"),
        (("--broker", "7"), 1, "has no pod of broker 7; it has pods of 0, 1, 2"),
        (("--node", "nowhere"), 1, "no broker of Cluster"),
        (("--node", "nowhere", "--cancel"), 1, "is named with --broker"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    reachable: Reachable, words: tuple[str, ...], code: int, told: str
) -> None:
    _, complaint = drain(reachable, *words, code=code)
    assert told in complaint
