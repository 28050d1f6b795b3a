"""`penstock top` with a real cluster: for scripts, in a terminal, on bad days."""

import io
import json
import os
import pty
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from rich.console import Console
from support import command_line
from support.cluster import PATIENT, Cluster
from support.waiting import wait_exit, wait_until
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.cli.top import _draw
from penstock.client import Admin, Consumer, Producer, TopicPartition
from penstock.views.cells import Cell, Column, Fact, Table
from penstock.views.findings import Finding
from penstock.views.overview import Explanation
from penstock.views.top import Top

GROUP = "[red]billing[/]"
EVIL = "\x1b[31mred\x1b]0;title\x07"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("top")
    with Cluster(folder, brokers=1, controller_config=PATIENT) as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic("flights", 1, 1)
            admin.create_topic("quiet", 1, 1)
        with Producer(cluster.bootstrap) as producer:
            for _ in range(30):
                producer.send("flights", b"x")
        with Consumer(cluster.bootstrap, group_id=GROUP) as consumer:
            consumer.assign([TopicPartition("flights", 0)])
            consumer.commit({TopicPartition("flights", 0): 5})
        yield cluster


def top(*words: str) -> Any:
    return CliRunner().invoke(app, ["top", *words])


def test_scripts_get_numbers(cluster: Cluster) -> None:
    def all_told() -> Any:
        """While the broker stands still, what it does not answer is told as a problem."""
        done = top("--once", "-o", "json", "--bootstrap", cluster.bootstrap)
        told = json.loads(done.stdout)
        return told if done.exit_code == 0 and not told["problems"] else None

    seen = wait_until(all_told, what="top says that all is well")
    assert seen["why"]["served"] is True
    assert seen["facts"]["brokers"] == 1
    (group,) = seen["groups"]
    assert (group["group"], group["lag"], group["topics"]) == (GROUP, 25, ["flights"])
    topics = {row["topic"]: row for row in seen["topics"]}
    assert topics["flights"]["records"] == 30
    assert topics["flights"]["records_rate"] == 0
    assert seen["brokers"][0]["state"] == "alive"


def test_people_get_tables_and_names_as_they_are(cluster: Cluster) -> None:
    def said() -> str:
        done = top("--once", "--bootstrap", cluster.bootstrap)
        return str(done.stdout) if done.exit_code == 0 and GROUP in done.stdout else ""

    # Its name in full: what were taken for markup is not shown.
    assert "All is well" in wait_until(said, what="top shows the group")


def test_no_escape_code_reaches_the_terminal() -> None:
    row = (Cell(EVIL, EVIL),)
    seen = Top(
        Explanation(EVIL, "odd", (Finding(EVIL, "code", EVIL, do=EVIL),)),
        (Fact("Fact", Cell(EVIL, EVIL)),),
        (Table("Groups", (Column("group", "Group"),), (row,)),),
        (EVIL,),
    )
    paper = Console(file=io.StringIO(), width=200)
    paper.print(_draw(seen))
    said = paper.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO
    assert said.count("[31mred") == 7
    assert "\x1b" not in said
    assert "\x07" not in said


def test_the_live_view_needs_a_terminal(cluster: Cluster) -> None:
    for words in ((), ("-o", "json")):
        done = top(*words, "--bootstrap", cluster.bootstrap)
        assert done.exit_code == 2
        assert "add --once" in done.stderr


def test_a_cluster_that_does_not_answer_ends_with_1(reserve: Any) -> None:
    done = top("--once", "-o", "json", "--bootstrap", reserve().address)
    assert done.exit_code == 1, done.output
    assert json.loads(done.stdout)["why"]["findings"][0]["code"] == "no-answer"


def test_the_live_view_shows_the_cluster_until_it_is_interrupted(cluster: Cluster) -> None:
    ours, theirs = pty.openpty()
    process = command_line.start(
        "top", "--bootstrap", cluster.bootstrap,
        stdin=theirs, stdout=theirs, stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
    )  # fmt: skip
    os.close(theirs)
    os.set_blocking(ours, False)
    said = b""

    def shown() -> bool:
        nonlocal said
        with suppress(BlockingIOError):
            said += os.read(ours, 65_536)
        return b"All is well" in said and b"flights" in said

    try:
        wait_until(shown, what="top shows the cluster")
        process.send_signal(signal.SIGINT)
        assert wait_exit(process, 30) == 130
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert b"Traceback" not in said
