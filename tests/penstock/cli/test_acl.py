"""`penstock acl …` against a real cluster, which stores rules and asks nobody who they are."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from support.cluster import Cluster
from typer.testing import CliRunner

from penstock.cli.acl import _change
from penstock.cli.main import app
from penstock.client import Admin
from penstock.core.authorization import CLUSTER, Kind, Operation, Prefix, Resource, Rule
from penstock.core.authorization.changes import with_rule

ETL = "serviceaccount:etl/spark"


class Program:
    """`penstock acl` in this process."""

    def __init__(self, cluster: Cluster) -> None:
        self._bootstrap = cluster.bootstrap

    def run(self, *words: str) -> Any:
        return CliRunner().invoke(app, ["acl", *words], env={"PENSTOCK_BOOTSTRAP": self._bootstrap})

    def ok(self, *words: str) -> str:
        done = self.run(*words)
        assert done.exit_code == 0, done.output
        return str(done.stdout)

    def fails(self, *words: str, code: int) -> str:
        done = self.run(*words)
        assert done.exit_code == code, done.output
        return str(done.output)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("acl")) as made:
        made.create_topic("orders", partitions=1)
        yield made


@pytest.fixture
def acl(cluster: Cluster) -> Program:
    return Program(cluster)


@pytest.mark.parametrize("resource", [Resource(Kind.TOPIC, "raced"), CLUSTER])
def test_two_changes_at_the_same_time_both_count(cluster: Cluster, resource: Resource) -> None:
    """Each of four waits, with the rules that it has read, until all have read the same ones."""
    if resource.name:
        cluster.create_topic(resource.name, partitions=1)
    meeting = Barrier(4)
    people = [f"cert:{name}" for name in ("ada", "bob", "cy", "di")]

    def join(person: str) -> None:
        waits = [meeting.wait]

        def changed(before: tuple[Rule, ...]) -> tuple[Rule, ...]:
            while waits:
                waits.pop()(60)
            prefix = None if resource.name else Prefix(Kind.TOPIC, "raced-")
            rule = Rule(principals=(person,), operations=(Operation.READ,), prefix=prefix)
            return with_rule(before, rule)

        with Admin(cluster.bootstrap) as admin:
            _change(admin, resource, changed, dry_run=False)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(join, people))
    with Admin(cluster.bootstrap) as admin:
        (rule,) = admin.describe_access([resource])[resource]
        assert set(rule.principals) == set(people)
        admin.alter_access(resource, ())


def test_rules_are_made_shown_asked_about_and_taken_away(acl: Program) -> None:
    acl.ok("allow", ETL, "read", "write", "--topic", "orders")
    acl.ok("allow", "cert:ada", "read", "write", "--topic", "orders")
    acl.ok("allow", ETL, "read", "--group-prefix", "etl-")
    acl.ok("allow", "serviceaccount:ops/tool", "--role", "admin")
    assert json.loads(acl.ok("list", "-o", "json")) == [
        {"of": "the cluster", "principals": [ETL], "allows": ["Read"], "on": "every group etl-*"},
        {
            "of": "the cluster",
            "principals": ["serviceaccount:ops/tool"],
            "allows": "admin",
            "on": "everything",
        },
        {
            "of": "topic orders",
            "principals": [ETL, "cert:ada"],
            "allows": ["Read", "Write"],
            "on": "topic orders",
        },
    ]
    assert "topic orders" in acl.ok("can-i", "write", "topic", "orders", "--as", ETL)
    assert "the cluster" in acl.ok("can-i", "read", "group", "etl-1", "--as", ETL)
    assert acl.run("can-i", "delete", "topic", "orders", "--as", ETL).exit_code == 1
    mine = acl.ok("can-i", "alter", "cluster")
    assert "nobody is asked who they are" in mine
    acl.ok("revoke", ETL, "--topic", "orders")
    acl.ok("revoke", ETL, "--group-prefix", "etl-")
    acl.ok("revoke", "serviceaccount:ops/tool", "--role", "admin")
    rows = json.loads(acl.ok("list", "--topic", "orders", "-o", "json"))
    assert [row["principals"] for row in rows] == [["cert:ada"]]
    acl.ok("revoke", "cert:ada", "--topic", "orders")
    assert json.loads(acl.ok("list", "-o", "json")) == []


@pytest.mark.parametrize(
    ("words", "code", "seen"),
    [
        (["allow", "spark", "read", "--topic", "orders"], 2, "principal 'spark' is not one; write"),
        (
            ["allow", ETL, "reed", "--topic", "orders"],
            2,
            "'reed' is no operation; there are create",
        ),
        (["allow", ETL, "reset", "--topic", "orders"], 2, "Reset is not one of a topic"),
        (["allow", ETL, "read"], 2, "say of what: give exactly one of --topic"),
        (["allow", ETL, "read", "--topic", "t", "--role", "admin"], 2, "give exactly one of"),
        (["allow", ETL, "read", "--topic", "none"], 1, "there is no topic 'none'"),
        (
            ["revoke", "cert:bob", "--topic", "orders"],
            1,
            "no such rule of topic orders names cert:bob",
        ),
        (["can-i", "read", "thing", "x"], 2, "'thing' is none of topic, group"),
        (["can-i", "read", "topic"], 2, "give a name"),
        (["can-i", "write", "cluster", "--as", ETL], 2, "Write is not one of a cluster"),
        (["list", "--topic", "a", "--group", "b"], 2, "not both"),
    ],
)
def test_what_is_wrong_is_one_line(acl: Program, words: list[str], code: int, seen: str) -> None:
    assert seen in acl.fails(*words, code=code)
