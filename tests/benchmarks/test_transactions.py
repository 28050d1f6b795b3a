"""The benchmark of transactions: how it compares, that its parts run, that it ends."""

import json
import signal
import sys
from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from support.benchmarks import check_nothing_is_left, running
from support.waiting import wait_exit

from benchmarks import table
from benchmarks.common import figure_of_rounds, in_turns, order_of
from benchmarks.transaction_kafka import drive_pipe

COMMAND = [sys.executable, "-m", "benchmarks.transactions", "--quick", "--no-kafka"]


def test_a_ratio_is_the_median_of_the_rounds_and_not_of_the_values(
    capsys: pytest.CaptureFixture[str],
) -> None:
    figure_of_rounds("x", [1.0, 20.0, 90.0], "s", "y", [2.0, 10.0, 100.0], goal="ratio ≥ 1")
    line = json.loads(capsys.readouterr().out)
    assert (line["value"], line["vs_value"], line["ratio"]) == (20.0, 10.0, 0.9)
    assert line["goal"] == "ratio ≥ 1"


def test_those_that_take_turns_run_once_a_round_each_in_another_order() -> None:
    ran: list[str] = []

    def run(name: str) -> int:
        ran.append(name)
        return len(ran)

    found = in_turns(6, {name: partial(run, name) for name in "abc"})
    assert "".join(ran) == "abc bca cab cba acb bac".replace(" ", "")
    assert found["a"] == [1, 6, 8, 12, 13, 17]


@pytest.mark.parametrize("count", range(2, 8))
def test_over_the_rounds_each_run_follows_each_other_one_equally_often(count: int) -> None:
    rounds = [order_of(turn, count) for turn in range(count * (1 + count % 2))]
    followed = Counter(pair for order in rounds for pair in pairwise(order))
    placed = Counter(place for order in rounds for place in enumerate(order))
    assert len(followed) == count * (count - 1)
    assert len(placed) == count * count
    assert len(set(followed.values())) == len(set(placed.values())) == 1


def test_a_pipe_commits_all_it_handed_on() -> None:
    """Polls of 4 records; an interval that has always passed makes each a transaction."""
    did: list[str] = []

    def work() -> int:
        did.append("work")
        return 4

    rate = drive_pipe(
        work, lambda: did.append("begin"), lambda: did.append("commit"), count=11, interval_s=1e-9
    )
    assert rate > 0
    assert did == ["begin", "work", "commit"] * 3


def test_a_pipe_without_records_is_an_error() -> None:
    polls = iter([5, 0])
    with pytest.raises(SystemExit, match="only 5 of 6 records came"):
        drive_pipe(lambda: next(polls), lambda: None, lambda: None, count=6, interval_s=60.0)


def test_goals_and_notes_stand_with_the_table_of_a_script_that_has_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = {"name": "n", "value": 1.5, "unit": "s", "vs": None, "ratio": None}
    lines = [line, line | {"vs": "limit", "vs_value": 3, "ratio": 0.5, "goal": "≤ 3 s"}]
    (tmp_path / "some.jsonl").write_text("\n".join(json.dumps(one) for one in lines))
    (tmp_path / "none.jsonl").write_text(json.dumps(line))
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    (tmp_path / "none.md").write_text("What limits it.\n")
    assert table.section("some", "Some").splitlines()[-4:] == [
        "| figure | value | compared with | its value | ratio | goal |",
        "|---|---|---|---|---|---|",
        "| n | 1.5 s |  |  |  |  |",
        "| n | 1.5 s | limit | 3 | 0.5 | ≤ 3 s |",
    ]
    assert table.section("none", "None").endswith("\n| n | 1.5 s |  |  |  |\n\nWhat limits it.\n")


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        (
            ("produce", "commit"),
            {
                "produce in transactions, batch API, 1000 B, commit every 100 ms",
                "produce in transactions, batch API, 1000 B, commit every 1000 ms",
                "commit(), p50",
                "commit(wait_visible=True), p50",
            },
        ),
        (
            ("single", "pipe"),
            {
                "transactions of one record, 1 producer",
                "transactions of one record, 3 producers",
                "transactions of one record, 3 producers, per core of their coordinator",
                "pipe, exactly once, 1000 B, commit every 100 ms",
            },
        ),
        (
            ("reading",),
            {
                "read_committed to Arrow, no transactions, 100 B",
                "read_committed to Arrow, all committed, 100 B",
                "read_committed to Arrow, half aborted, 100 B",
            },
        ),
        (
            ("deaths", "idle"),
            {
                "commits go on after kill -9 of the coordinator, median",
                "commits go on after kill -9 of the coordinator, worst",
                "the last stable offset moves after kill -9 of a pipe's member, median",
                "the last stable offset moves after kill -9 of a pipe's member, worst",
                "CPU of a broker, 20 transactional ids open without traffic",
            },
        ),
    ],
    ids=["produce-commit", "single-pipe", "reading", "deaths-idle"],
)
def test_every_part_prints_its_figures(
    tmp_path: Path, parts: tuple[str, ...], names: set[str]
) -> None:
    command = [*COMMAND, *(f"--only={part}" for part in parts)]
    with running(command, tmp_path, {}) as process:
        assert wait_exit(process, 240) == 0, (tmp_path / "err").read_text()
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert {line["name"] for line in lines} == names
    assert len(lines) == len(names)
    for line in lines:
        assert line["value"] > 0 or line["name"].startswith("CPU"), line


def test_a_part_that_is_unknown_is_named(tmp_path: Path) -> None:
    with running([*COMMAND, "--only=nosuch"], tmp_path, {}) as process:
        assert wait_exit(process, 60) == 2
    assert "invalid choice: 'nosuch'" in (tmp_path / "err").read_text()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["SIGINT", "SIGKILL"])
def test_nothing_is_left_running(tmp_path: Path, how: signal.Signals) -> None:
    """Not even a member that is in the middle of a transaction at that moment."""
    command = [*COMMAND, "--only=deaths"]
    check_nothing_is_left(
        command, tmp_path, how, busy="benchmarks.transaction_member", servers=("penstock_broker",)
    )
