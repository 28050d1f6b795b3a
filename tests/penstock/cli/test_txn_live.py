"""`penstock txn …` against a real cluster of two brokers, with a transaction that stays open."""

import json
import uuid
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from support.cluster import Cluster
from support.group_wire import Groups
from support.terminals import person_there
from support.transaction_wire import TransactionalProducer
from support.waiting import wait_until
from support.wire import now_ms
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.client import BatchOutcome, BatchRun, Producer
from penstock.errors import ErrorCode, PenstockError
from penstock.rpc.errors import error_from_wire

LONG: dict[str, Any] = {"transaction_timeout_ms": 600_000}
"""Nothing but a test ends its transactions."""


class Program:
    """`penstock txn` in this process."""

    def __init__(self, cluster: Cluster) -> None:
        self._bootstrap = cluster.bootstrap

    def run(self, *words: object, group: str = "txn", answer: str = "") -> Any:
        with person_there(bool(answer)):
            done = CliRunner().invoke(
                app,
                [group, *map(str, words)],
                env={"PENSTOCK_BOOTSTRAP": self._bootstrap},
                input=answer,
            )
        assert "Traceback" not in done.output, done.output
        return done

    def ok(self, *words: object, group: str = "txn") -> str:
        done = self.run(*words, group=group)
        assert done.exit_code == 0, done.output
        return str(done.stdout)

    def json(self, *words: object, group: str = "txn") -> Any:
        return json.loads(self.ok(*words, "-o", "json", group=group))


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
    producer = TransactionalProducer(cluster, "payments-0", client_id="billing", **LONG).init()
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
    assert out == "payments-0: 1 open transaction aborted\n"
    wait_until(lambda: not penstock.json("partition", "flights/1")["open"], what="it is ended")
    assert penstock.json("list", "--state", "open") == []
    (branch,) = penstock.json("describe", "payments-0")["branches"]
    assert (branch["last"], branch["by"]) == ("aborted", "operator")
    out = penstock.ok("abort", "payments-0", "--yes")
    assert out == "payments-0: nothing was open, so nothing was aborted\n"
    told = error_from_wire(producer.end(commit=True).error)
    assert told.code is ErrorCode.TRANSACTION_ABORTED
    assert "operator" in told.message


def test_a_client_whose_name_would_rule_a_terminal_is_refused(cluster: Cluster) -> None:
    producer = TransactionalProducer(cluster, "evil-0", client_id="\x1b[8mhidden", **LONG)
    with pytest.raises(PenstockError, match=r"client_id is .*must have printable characters only"):
        producer.init()


def test_what_began_while_somebody_was_asked_is_not_aborted(
    cluster: Cluster, penstock: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic("trains", partitions=1)
    producer = TransactionalProducer(cluster, "trains-0", **LONG).init()
    producer.send("trains", b"shown")

    def go_on(question: str, *, yes: bool) -> None:
        assert question.startswith("Abort 1 open transaction ")
        producer.end(commit=True)
        producer.send("trains", b"another")

    with monkeypatch.context() as patch:
        patch.setattr("penstock.cli.txn.confirm", go_on)
        done = penstock.run("abort", "trains-0")
    assert done.exit_code == 1
    assert "trains-0: what was shown has ended; nothing was aborted" in done.stderr
    assert len(penstock.json("list", "--state", "open")) == 1
    assert not producer.end(commit=True).HasField("error")


def test_what_holds_up_readers_is_named_with_its_owner(cluster: Cluster, penstock: Program) -> None:
    cluster.create_topic("orders", partitions=3)
    assert penstock.json("blocking") == []
    slow = TransactionalProducer(cluster, "slow-0", client_id="billing", **LONG).init()
    fast = TransactionalProducer(cluster, "fast-0", **LONG).init()
    fast.send("orders", b"before", partition=2)
    fast.end(commit=True)
    for partition in (0, 2):
        slow.send("orders", b"first", b"second", partition=partition)
    fast.send("orders", b"behind", partition=2)

    first, second = penstock.json("blocking")
    assert [first["partition"], second["partition"]] == ["orders/0", "orders/2"]
    assert (first["last_stable_offset"], first["behind"]) == (0, 2)
    assert (second["last_stable_offset"], second["behind"]) == (2, 3), "data and marker of fast-0"
    for row in (first, second):
        assert (row["id"], row["client"], row["host"]) == ("slow-0", "billing", "127.0.0.1")
        assert (row["producer"], row["epoch"]) == (slow.producer_id, slow.epoch)
        assert (row["decided"], row["age_s"] > 0) == (False, True)
    assert penstock.json("blocking", "--older-than", "1d") == []

    slow.end(commit=False)
    (row,) = penstock.json("blocking")
    assert (row["partition"], row["id"]) == ("orders/2", "fast-0"), "the next one in line"
    fast.end(commit=True)
    assert penstock.json("blocking") == []


def test_a_group_shows_whose_transaction_has_its_offsets_in_hand(
    cluster: Cluster, penstock: Program
) -> None:
    cluster.create_topic("clicks", partitions=2)
    producer = TransactionalProducer(cluster, "clicks-0", client_id="counter", **LONG).init()
    part_of = producer.part_of()
    with Groups(cluster) as groups:
        groups.commit("counters", {("clicks", 0): 0, ("clicks", 1): 0})
        assert "transactions" not in penstock.json("describe", "counters", group="group")
        groups.commit("counters", {("clicks", 1): 0}, **part_of)
    (row,) = penstock.json("describe", "counters", group="group")["transactions"]
    assert (row["id"], row["client"], row["partitions"]) == ("clicks-0", "counter", ["clicks/1"])
    assert row["open_s"] > 0
    assert "clicks-0" in penstock.ok("describe", "counters", group="group")
    producer.end(commit=True)
    assert "transactions" not in penstock.json("describe", "counters", group="group")


def commit_batch(
    cluster: Cluster, batch: int, rows: int, *, checkpoint: str = "query"
) -> BatchOutcome:
    """As a Spark query does: one task writes, the driver commits."""
    run = BatchRun("spark/flights", checkpoint, str(uuid.uuid4()), batch)
    with Producer(cluster.bootstrap, transactional_id="spark/flights") as producer:
        branches = producer.branches()
        branch = branches.begin(run, 0, 0)
        if branch is None:
            return branches.commit_batch(run, rows, [])
        branches.send_columns("aggregates", [b"row"] * rows)
        branches.hand_over()
        return branches.commit_batch(run, rows, [branch], wait_visible_ms=20_000)


def test_a_ledger_is_shown_and_forgotten(cluster: Cluster, penstock: Program) -> None:
    cluster.create_topic("aggregates")
    done = penstock.run("ledgers")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "there are no ledgers\n")
    assert penstock.json("ledgers") == []
    before_ms = now_ms()
    for batch in range(2):
        assert not commit_batch(cluster, batch, 3 + batch).already_committed

    (row,) = penstock.json("ledgers")
    assert (row["application"], row["batch"], row["rows"], row["checkpoint"]) == (
        "spark/flights", 1, 4, "query",
    )  # fmt: skip
    uuid.UUID(row["run"])
    committed = datetime.fromisoformat(row["committed"]).timestamp()
    assert before_ms // 1000 <= committed <= now_ms() / 1000
    table = penstock.ok("ledgers").splitlines()
    assert table[0].split() == ["APPLICATION", "BATCH", "ROWS", "COMMITTED", "RUN", "CHECKPOINT"]
    assert table[1].split()[:3] == ["spark/flights", "1", "4"]

    assert commit_batch(cluster, 1, 4).already_committed, "the ledger tells a repetition"
    with pytest.raises(PenstockError) as mismatch:
        commit_batch(cluster, 0, 1, checkpoint="fresh")
    assert mismatch.value.code is ErrorCode.LEDGER_MISMATCH

    asked = penstock.run("forget-ledger", "spark/flights", answer="n\n")
    assert asked.exit_code == 1
    assert "Delete the ledger of spark/flights?" in asked.stderr
    assert len(penstock.json("ledgers")) == 1, "the answer was no"
    assert penstock.ok("forget-ledger", "spark/flights", "--yes") == (
        "ledger of spark/flights deleted\n"
    )
    assert penstock.json("ledgers") == []
    again = penstock.run("forget-ledger", "spark/flights", "--yes")
    assert (again.exit_code, len(again.stderr.splitlines())) == (1, 1)
    assert "there is no ledger of 'spark/flights'; `penstock txn ledgers` lists all" in again.stderr

    assert not commit_batch(cluster, 0, 1, checkpoint="fresh").already_committed
    (row,) = penstock.json("ledgers")
    assert (row["batch"], row["rows"], row["checkpoint"]) == (0, 1, "fresh")


def test_every_command_has_help_with_an_example(penstock: Program) -> None:
    names = ["list", "describe", "abort", "partition", "blocking", "ledgers", "forget-ledger"]
    for name in names:
        assert f"penstock txn {name}" in penstock.ok(name, "--help").partition("Example")[2], name
