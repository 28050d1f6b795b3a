"""`penstock txn …` against a real cluster of two brokers, with a transaction that stays open."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.cluster import Cluster
from support.transaction_wire import TransactionalProducer
from support.waiting import wait_until
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.errors import ErrorCode
from penstock.rpc.errors import error_from_wire


class Program:
    """`penstock txn` in this process."""

    def __init__(self, cluster: Cluster) -> None:
        self._bootstrap = cluster.bootstrap

    def ok(self, *words: object) -> str:
        done = CliRunner().invoke(
            app, ["txn", *map(str, words)], env={"PENSTOCK_BOOTSTRAP": self._bootstrap}
        )
        assert done.exit_code == 0, done.output
        return str(done.stdout)

    def json(self, *words: object) -> Any:
        return json.loads(self.ok(*words, "-o", "json"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("txn"), brokers=2) as cluster:
        yield cluster


@pytest.fixture
def penstock(cluster: Cluster) -> Program:
    return Program(cluster)


def test_an_open_transaction_is_seen_from_all_sides_and_aborted(
    cluster: Cluster, penstock: Program
) -> None:
    cluster.create_topic("flights", partitions=2)
    producer = TransactionalProducer(cluster, "payments-0", client_id="billing").init()
    producer.send("flights", b"first", partition=1)
    producer.end(commit=True)
    producer.send("flights", b"second", partition=1)

    (row,) = penstock.json("list", "--state", "open")
    assert (row["id"], row["client"], row["producer"]) == (
        "payments-0",
        "billing",
        producer.producer_id,
    )
    assert row["open_s"] >= 0
    assert penstock.json("list", "--older-than", "1d") == []

    (branch,) = penstock.json("describe", "payments-0")["branches"]
    assert (branch["state"], branch["joined"]) == ("open", ["flights/1"])
    assert (branch["last"], branch["by"]) == ("committed", "producer")

    seen = penstock.json("partition", "flights/1")
    (held,) = seen["open"]
    assert held["first_offset"] == seen["last_stable_offset"] < seen["high_watermark"]
    assert (held["id"], held["client"]) == ("payments-0", "billing")
    assert penstock.json("partition", "flights/0")["open"] == []

    out = penstock.ok("abort", "payments-0", "--reason", "a test", "--yes")
    assert out == "payments-0: 1 open transactions aborted\n"
    wait_until(lambda: not penstock.json("partition", "flights/1")["open"], what="it is ended")
    assert penstock.json("list", "--state", "open") == []
    (branch,) = penstock.json("describe", "payments-0")["branches"]
    assert (branch["last"], branch["by"]) == ("aborted", "operator")
    out = penstock.ok("abort", "payments-0", "--yes")
    assert out == "payments-0: nothing was open, so nothing was aborted\n"
    told = error_from_wire(producer.end(commit=True).error)
    assert told.code is ErrorCode.TRANSACTION_ABORTED
    assert "operator" in told.message


def test_a_cluster_without_ledgers_says_so(penstock: Program) -> None:
    assert penstock.json("ledgers") == []
