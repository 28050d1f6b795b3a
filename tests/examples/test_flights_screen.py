"""What the demo shows while it runs and at its end: on terminals of any size, and in a pipe."""

import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.waiting import wait_until

from examples.flights.jobs import SparkJob
from examples.flights.kills import note_returned
from examples.flights.live import Board, PartitionRow, line, render
from examples.flights.screen import _print_lines, show_outcome, showing
from examples.flights.verdict import Outcome
from penstock.verify.check import Checker

TOTAL = 336_776
STEPS = {
    "produced": 200_001,
    "acknowledged": 200_002,
    "replicated": 200_003,
    "enriched": 200_004,
    "in_windows": 200_005,
}
SIZES = [(200, 60), (118, 30), (100, 24), (99, 24), (80, 24), (60, 24)]
"""Columns and lines."""


@pytest.fixture
def board() -> Board:
    """In the middle of a run."""
    made = Board(TOTAL, windows=1_234, updates=4_321)
    for step, count in STEPS.items():
        setattr(made, step, count)
    made.transactions_open = 2
    made.transactions_ended = {"commit": 1_024, "timeout": 1, "fenced": 2}
    made.partitions = [
        PartitionRow(number, number % 3, 7, (0, 1, 2), (0, 1, 2), 33_000 + number)
        for number in range(6)
    ]
    made.tell("three brokers serve")
    return made


def screen(board: Board, width: int = 118, height: int = 30) -> list[str]:
    """The lines that a terminal of this size shows."""
    console = Console(file=io.StringIO(), width=width, height=height)
    with console.capture() as shown:
        console.print(render(board, width, height))
    return shown.get().splitlines()


def row(lines: list[str], label: str) -> str:
    """The only line with that text."""
    (found,) = [text for text in lines if label in text]
    return found


def cells(lines: list[str], label: str) -> list[str]:
    """The words of that line."""
    return row(lines, label).replace("│", " ").split()


def bar(text: str) -> int:
    """How long the bar in this line is."""
    return text.count("━")


# ---------------------------------------------------------------- the live view


def test_every_step_shows_how_many_flights_have_come_so_far(board: Board) -> None:
    lines = screen(board)
    assert "336,776 flights" in lines[0]
    for label, count in {
        "produced": "200,001",
        "acknowledged by all replicas": "200,002",
        "below the high watermark": "200,003",
        "enriched, committed": "200,004",
        "in Spark's windows, committed": "200,005",
        "written back by Spark": "4,321 updates of 1,234 hourly windows",
        "transactions": "2 open · 1,024 committed · 3 aborted",
        "longest write gap": "none yet",
    }.items():
        assert count in row(lines, label), label


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_bars_grow_with_the_flights(board: Board, width: int, height: int) -> None:
    lengths = []
    for board.enriched in (0, TOTAL // 4, TOTAL // 2, TOTAL):
        lengths.append(bar(row(screen(board, width, height), "enriched, committed")))
    assert lengths[0] == 0
    assert lengths == sorted(set(lengths)), "each is longer than the one before"


def test_each_partition_shows_its_leader_epoch_replicas_and_flights(board: Board) -> None:
    board.partitions[4] = PartitionRow(4, -1, 8, (0,), (0, 1, 2), 41_000)
    lines = screen(board)
    assert cells(lines, "33,003")[:7] == ["3", "0", "7", "0", "1", "2", "33,003"]
    assert cells(lines, "41,000")[:7] == ["4", "none", "8", "0", "1", "2", "41,000"]


def test_a_replica_that_is_not_in_sync_is_struck_out(board: Board) -> None:
    board.partitions = [PartitionRow(0, 2, 8, (0, 2), (0, 1, 2), 41_000)]
    console = Console(file=io.StringIO(), width=118, force_terminal=True, color_system="standard")
    with console.capture() as shown:
        console.print(render(board, 118))
    struck = "\x1b[2;9m"
    assert f"{struck}1\x1b" in shown.get()
    assert shown.get().count(struck) == 1


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_what_is_down_is_named(board: Board, width: int, height: int) -> None:
    assert "down" not in "".join(screen(board, width, height))
    assert "down" not in line(board)
    board.down = {1}
    assert "broker 1 down" in row(screen(board, width, height), "who leads")
    board.dead = {"the Spark driver"}
    shown = row(screen(board, width, height), "who leads")
    assert "broker 1, the Spark driver down" in shown
    assert line(board).endswith("broker 1, the Spark driver down")
    board.down, board.dead = set(), {"the transformer"}
    assert "the transformer down" in row(screen(board, width, height), "who leads")
    assert line(board).endswith("the transformer down")


def test_a_killed_spark_driver_is_down_until_its_query_runs_again(
    board: Board, tmp_path: Path
) -> None:
    job = SparkJob("127.0.0.1:9", tmp_path, "enriched", "delays")
    board.dead = {job.name}
    note_returned([job], board)
    assert "the Spark driver down" in row(screen(board), "who leads")
    job._note({"ready": True})
    note_returned([job], board)
    assert "down" not in row(screen(board), "who leads")


def test_a_write_gap_counts_until_it_is_over(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    board.waiting_since = board.began + 10
    monkeypatch.setattr("examples.flights.live.monotonic", lambda: board.began + 12.5)
    assert "2.50 s and counting" in row(screen(board), "longest write gap")
    board.waiting_since, board.write_gap_s = None, 0.75
    shown = row(screen(board), "longest write gap")
    assert "0.75 s" in shown
    assert "counting" not in shown


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_screen_fits_its_terminal_and_has_the_newest_events(
    board: Board, width: int, height: int
) -> None:
    for number in range(20):
        board.tell(f"kill -9 {number:05}: the transformer, between transactions", "bold red")
    lines = screen(board, width, height)
    assert max(len(text) for text in lines) <= width
    assert len(lines) < height, "the last line is the cursor's"
    events = [text for text in lines if "kill -9" in text]
    assert 2 <= len(events) <= 8
    for number, text in enumerate(events, 20 - len(events)):
        assert f"kill -9 {number:05}" in text
    for label, count in STEPS.items():
        assert sum(f"{count:,}" in text for text in lines) == 1, label


@pytest.mark.parametrize(("width", "height"), [(40, 10), (12, 3), (1, 1)])
def test_no_terminal_is_too_small(board: Board, width: int, height: int) -> None:
    assert all(len(text) <= width for text in screen(board, width, height))


def test_events_are_shown_as_they_are(board: Board) -> None:
    board.tell("it said [bold]this[/] and [/that]")
    assert "it said [bold]this[/] and [/that]" in "".join(screen(board))


# ---------------------------------------------------------------- while it runs


class Output(io.StringIO):
    """What was printed; `then` is called once, after a line with `word` was."""

    def __init__(self, word: str, then: Callable[[], None]) -> None:
        super().__init__()
        self._word = word
        self._then: Callable[[], None] | None = then

    def write(self, text: str) -> int:
        written = super().write(text)
        if self._then is not None and self._word in text:
            then, self._then = self._then, None
            then()
        return written


def test_in_a_pipe_every_event_is_a_line_and_so_is_the_board(board: Board) -> None:
    board.tell("kill -9 4711: [/a/path] " + "x" * 200)
    out = io.StringIO()
    with showing(Console(file=out, width=40), board, None):
        pass
    printed = out.getvalue().splitlines()
    assert "\x1b" not in out.getvalue()
    assert [text.partition(" · ")[2] for text in printed[:2]] == [
        "three brokers serve",
        "kill -9 4711: [/a/path] " + "x" * 200,
    ]
    last = printed[-1]
    assert "produced 200,001 · acknowledged 200,002 · replicated 200,003" in last
    assert "enriched 200,004 · in windows 200,005" in last
    assert "transactions 2 open, 1,024 committed, 3 aborted" in last
    assert len(printed) == 3, "one line for the board"


def test_in_a_pipe_an_event_that_comes_while_others_are_printed_is_not_forgotten(
    board: Board,
) -> None:
    class TwoRounds(threading.Event):
        rounds = iter([False, True])

        def wait(self, timeout: float | None = None) -> bool:
            return next(self.rounds)

    out = Output("three brokers serve", lambda: board.tell("told meanwhile"))
    _print_lines(Console(file=out, width=40), board, TwoRounds())
    assert out.getvalue().count("three brokers serve") == 1
    assert out.getvalue().count("told meanwhile") == 1


def test_a_terminal_sees_the_board_change(board: Board) -> None:
    out = io.StringIO()
    console = Console(file=out, width=80, height=24, force_terminal=True, color_system=None)
    with showing(console, board, None):
        wait_until(lambda: "200,004" in out.getvalue(), what="it is drawn")
        board.enriched = 200_099
        wait_until(lambda: "200,099" in out.getvalue(), what="it is drawn again")
        board.enriched = TOTAL
    assert "336,776" in out.getvalue().rpartition("enriched, committed")[2], "the end is shown"


# ---------------------------------------------------------------- its end


def outcome(*reasons: str, **changes: Any) -> Outcome:
    given: dict[str, Any] = {
        "streamed": {(0, "UA"): (300, 290, 2_900), (1, "UA"): (100, 100, 0), (0, "AA"): (40, 0, 0)},
        "flights": TOTAL,
        "updates": 4_321,
        "aborted": {"enriched": 17, "delays": 5},
    }
    verdict = Checker().finish()
    return Outcome(reasons=list(reasons), history=verdict, **{**given, **changes})


def ended(board: Board, outcome: Outcome, width: int = 118) -> str:
    out = io.StringIO()
    show_outcome(Console(file=out, width=width), board, outcome)
    return out.getvalue()


def test_a_run_that_passed_says_so_and_gives_the_sums_per_carrier(board: Board) -> None:
    board.write_gap_s = 0.75
    shown = ended(board, outcome())
    lines = shown.splitlines()
    united = cells(lines, "UA")
    assert united[:5] == ["UA", "400", "10", "7.4", "min"]
    american = cells(lines, "AA")
    assert american[:5] == ["AA", "40", "40", "0.0", "min"]
    assert united[5].count("█") == 30
    assert american[5].count("█") == 3
    said = " ".join(shown.split())
    assert "336,776 flights enriched · 3 hourly windows in 4,321 updates" in said
    assert "aborted and seen by nobody: 17 flights, 5 updates" in said
    assert "for 0.75 s" in said
    assert "PASS" in said
    assert "FAIL" not in said


def test_a_run_that_failed_gives_every_reason_as_it_is(board: Board) -> None:
    reasons = ["3 flights lost: [UA 17]", "carrier [b]AA[/x] is in several partitions"]
    said = " ".join(ended(board, outcome(*reasons), width=60).split())
    for reason in reasons:
        assert f"FAIL: {reason}" in said
    assert "PASS" not in said


@pytest.mark.parametrize("streamed", [{}, {(0, "UA"): (0, 0, 0)}], ids=["no window", "no flight"])
def test_a_run_of_which_nothing_came_back_fails_like_others(
    board: Board, streamed: dict[Any, Any]
) -> None:
    said = ended(board, outcome("nothing has come", streamed=streamed, updates=0))
    assert "FAIL: nothing has come" in said
