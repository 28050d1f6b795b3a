"""Dry runs change nothing, programs are never asked, and every change is a record for them; with
what `topic list --lag` and `broker config` show. In this process, against a real cluster."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.cluster import Cluster
from support.waiting import wait_until
from typer.testing import CliRunner

from penstock.cli import places, topic_trim
from penstock.cli.main import app
from penstock.client import EARLIEST, Admin, Consumer, OffsetSpec, Producer, TopicPartition


class Program:
    """`penstock` in this process."""

    def __init__(self, cluster: Cluster) -> None:
        self.bootstrap = cluster.bootstrap

    def run(self, *words: object, code: int = 0) -> str:
        done: Any = CliRunner().invoke(
            app, [*map(str, words)], env={"PENSTOCK_BOOTSTRAP": self.bootstrap}
        )
        assert done.exit_code == code, done.output
        return str(done.stderr if code else done.stdout)

    def json(self, *words: object) -> Any:
        return json.loads(self.run(*words, "-o", "json"))

    @property
    def admin(self) -> Admin:
        return Admin(self.bootstrap)

    def commit(self, topic: str, group: str, offset: int) -> None:
        """As the group's offset in partition 0."""
        with Consumer(self.bootstrap, group_id=group, enable_auto_commit=False) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            consumer.commit({TopicPartition(topic, 0): offset})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    config = {"fetch.parked.max": "777", "rpcs.max": "40000"}
    with Cluster(tmp_path_factory.mktemp("changes"), brokers=2, broker_config=config) as cluster:
        yield cluster


@pytest.fixture
def penstock(cluster: Cluster) -> Program:
    return Program(cluster)


def test_a_topic_is_made_and_deleted_only_without_a_dry_run(penstock: Program) -> None:
    assert penstock.json("topic", "create", "t", "--dry-run") == {"topic": "t", "dry_run": True}
    assert "t" not in {one["topic"] for one in penstock.json("topic", "list")}
    made = penstock.json("topic", "create", "t", "-p", 2)
    assert (made["partitions"], made["dry_run"]) == (2, False)

    change = ("topic", "alter", "t", "--set", "retention.ms=7d", "-p", 4)
    assert penstock.json(*change, "--dry-run")["set"] == {"retention.ms": "604800000"}
    assert penstock.json("topic", "describe", "t")["partitions"] == 2
    assert penstock.json(*change)["partitions"] == 4
    assert penstock.json("topic", "describe", "t")["partitions"] == 4

    told = penstock.run("topic", "delete", "t", "-o", "json", code=2)
    assert "nobody can ask: give --yes, or --dry-run" in told
    assert penstock.json("topic", "delete", "t", "--dry-run")["topic_id"] == made["topic_id"]
    assert penstock.json("topic", "delete", "t", "--yes")["dry_run"] is False
    wait_until(lambda: penstock.json("topic", "list") == [], what="the topic is gone")


def test_a_trim_to_the_end_deletes_what_it_showed_and_no_more(
    cluster: Cluster, penstock: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody writes whenever it looks."""
    cluster.create_topic("trimmed")
    with Producer(penstock.bootstrap, transactional_id="t") as other, penstock.admin as admin:

        def look(*asked: Any) -> Any:
            with Producer(penstock.bootstrap) as producer:
                producer.send("trimmed", b"x")
            return places.resolve(*asked)

        monkeypatch.setattr(topic_trim, "resolve", look)
        trim = ("topic", "trim", "trimmed", "--before", "end")
        (row,) = penstock.json(*trim, "--dry-run")
        assert (row["records"], row["ends_at"], row["dry_run"]) == (2, 3, True)
        (row,) = penstock.json(*trim, "--yes")
        assert (row["log_start"], row["ends_at"], row["dry_run"]) == (5, 6, False)
        assert offset(admin, EARLIEST) == 5, "the last record is not among those shown"

        transaction = other.transaction()
        transaction.begin()
        transaction.send("trimmed", b"x")
        other.flush()
        (row,) = penstock.json(*trim, "--yes")
        assert row["log_start"] == offset(admin, EARLIEST) == 6
        (row,) = penstock.json(*trim, "--yes")
        assert (row["log_start"], row["records"]) == (6, 0)
        transaction.commit()


def offset(admin: Admin, spec: OffsetSpec) -> int:
    where = TopicPartition("trimmed", 0)
    return admin.list_offsets({where: spec})[where].offset


def test_partitions_and_settings_are_changed_both_or_neither(penstock: Program) -> None:
    penstock.run("topic", "create", "both", "-p", 2)
    for change in (("-p", 4, "--set", "retention.msec=1"), ("-p", 1, "--set", "retention.ms=1")):
        penstock.run("topic", "alter", "both", *change, code=1)
        seen = penstock.json("topic", "describe", "both")
        assert seen["partitions"] == 2
        assert all(one["default"] for one in seen["configs"])


def test_a_group_is_deleted_only_without_a_dry_run_and_without_members(
    cluster: Cluster, penstock: Program
) -> None:
    cluster.create_topic("grouped")
    penstock.commit("grouped", "g", 0)
    assert penstock.json("group", "delete", "g", "--dry-run") == {
        "group": "g", "offsets": 1, "dry_run": True,
    }  # fmt: skip
    with Consumer(penstock.bootstrap, group_id="g") as member:
        member.subscribe("grouped")
        wait_until(lambda: member.poll(0.1, 1) or member.assignment(), what="it is a member")
        told = penstock.run("group", "delete", "g", "--dry-run", code=1)
        assert "group g has 1 members; stop its consumers first" in told
    assert penstock.json("group", "delete", "g", "--yes")["offsets"] == 1
    assert penstock.json("group", "list") == []


def test_rules_and_quotas_are_checked_but_not_stored_by_a_dry_run(penstock: Program) -> None:
    rule = ("acl", "allow", "serviceaccount:etl/spark", "read", "--group-prefix", "etl-")
    assert len(penstock.json(*rule, "--dry-run")["rules"]) == 1
    assert penstock.json("acl", "list") == []
    assert "is not one" in penstock.run("acl", "allow", "spark", *rule[3:], "--dry-run", code=2)
    assert len(penstock.json(*rule)["rules"]) == 1
    less = ("acl", "revoke", "serviceaccount:etl/spark", "--group-prefix", "etl-")
    assert penstock.json(*less, "--dry-run")["rules"] == []
    assert len(penstock.json("acl", "list")) == 1
    assert penstock.json(*less)["dry_run"] is False
    assert penstock.json("acl", "list") == []

    limit = ("quota", "set", "cert:ada", "--streams", "3")
    assert penstock.json(*limit, "--dry-run")["quotas"][0]["limits"] == {"streams": 3}
    assert penstock.json("quota", "list") == []
    assert "is not one" in penstock.run("quota", "set", "ada", *limit[3:], "--dry-run", code=2)
    penstock.run(*limit)
    assert penstock.json("quota", "remove", "cert:ada", "--dry-run")["quotas"] == []
    assert len(penstock.json("quota", "list")) == 1
    penstock.run("quota", "remove", "cert:ada")


def test_a_scrub_says_how_much_it_would_read_and_reads_nothing(
    cluster: Cluster, penstock: Program
) -> None:
    cluster.create_topic("scrubbed", partitions=3, replication_factor=2)
    before = [one["due"] for one in penstock.json("scrub", "status")]
    asked = penstock.json("scrub", "start", "scrubbed", "--dry-run")
    assert asked == {"replicas": 6, "dry_run": True}
    assert penstock.json("scrub", "start", "scrubbed/1", "--dry-run")["replicas"] == 2
    assert "does not exist" in penstock.run("scrub", "start", "misspelt", "--dry-run", code=1)
    told = penstock.run("scrub", "start", "scrubbed/99", "--dry-run", code=1)
    assert "scrubbed has partitions 0 to 2, not 99" in told
    assert [one["due"] for one in penstock.json("scrub", "status")] == before
    assert penstock.json("scrub", "start", "scrubbed") == {"replicas": 6, "dry_run": False}


def test_leaderships_go_back_to_preferred_leaders(cluster: Cluster, penstock: Program) -> None:
    """Nobody else gives them back meanwhile: the controller looks once an hour here."""
    cluster.create_topic("led", assignment=[[0, 1], [0, 1], [1, 0]])
    cluster.wait_in_sync("led")
    with penstock.admin as admin:
        assert admin.elect_leaders(away_from_broker=0) >= 2

    def expect_leaders(*wanted: int) -> None:
        """Every broker knows them: any may be asked what there is to give back."""
        for partition, leader in enumerate(wanted):
            for at in cluster.brokers:
                wait_until(
                    lambda: cluster.partition("led", partition, at).leader == leader,  # noqa: B023
                    what=f"broker {at} knows that {leader} leads led/{partition}",
                )

    expect_leaders(1, 1, 1)
    rows = [
        {"topic": "led", "partition": number, "leader": 1, "preferred": 0, "in_sync": True}
        for number in (0, 1)
    ]
    assert penstock.json("elect", "led", "--dry-run") == {
        "moved": 0, "dry_run": True, "partitions": rows,
    }  # fmt: skip
    assert penstock.run("elect", "led", "--dry-run").endswith("2 leaderships could move\n")
    assert penstock.json("elect", "led/1")["moved"] == 1
    expect_leaders(1, 0, 1)
    assert penstock.run("elect", "led").endswith("1 leadership moved\n")
    expect_leaders(0, 0, 1)
    assert penstock.json("elect", "led") == {"moved": 0, "dry_run": False, "partitions": []}


def test_the_lag_of_a_topic_is_that_of_the_group_furthest_behind(
    cluster: Cluster, penstock: Program
) -> None:
    cluster.create_topic("lagging")
    cluster.create_topic("unread")
    with Producer(penstock.bootstrap) as producer:
        for _ in range(10):
            producer.send("lagging", b"x")
    penstock.commit("lagging", "near", 9)
    penstock.commit("lagging", "far", 2)
    rows = {row["topic"]: row for row in penstock.json("topic", "list", "--lag")}
    assert (rows["lagging"]["lag"], rows["lagging"]["group"]) == (8, "far")
    assert (rows["unread"]["lag"], rows["unread"]["group"]) == (None, None)
    assert "lag" not in penstock.json("topic", "list")[0], "it costs a call per group"


def test_the_settings_of_a_broker_say_where_they_are_from(penstock: Program) -> None:
    def rows(*words: object) -> Any:
        return {one["name"]: one for one in penstock.json("broker", "config", 1, *words)}

    set_here = rows()
    assert set_here.keys() >= {"fetch.parked.max", "rpcs.max"}
    assert "cache.bytes" not in set_here
    parked = set_here["fetch.parked.max"]
    assert (parked["value"], parked["source"], parked["default"]) == ("777", "start", "10000")
    assert set_here["rpcs.max"]["source"] == "start", "although that is its default"
    every = rows("--all")
    assert every["cache.bytes"]["source"] == "default"

    throttle = ("partitions", "throttle", "1Mi")
    assert penstock.json(*throttle, "--dry-run") == {"copy_rate": 1_048_576, "dry_run": True}
    penstock.run(*throttle)
    try:
        copying = wait_until(
            lambda: rows().get("replica.copy.bytes.per.second"), what="the broker has the rate"
        )
        assert (copying["value"], copying["source"]) == ("1048576", "cluster")
    finally:
        penstock.run("partitions", "throttle", "default")
    assert "no such brokers: 9; the cluster has 0, 1" in penstock.run("broker", "config", 9, code=1)
