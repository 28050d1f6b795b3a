"""Showing the board while the demo runs, and the outcome at its end."""

import contextlib
import io
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from examples.flights.live import Board, line, render
from examples.flights.verdict import Outcome

PROCESSES_KILLED = 3
PICTURE_WIDTH = 118


@contextlib.contextmanager
def showing(console: Console, board: Board, screenshot: Path | None) -> Iterator[None]:
    """The live view on a terminal; elsewhere a line every five seconds."""
    stop = threading.Event()
    paint = _paint_live if console.is_terminal else _print_lines
    threads = [threading.Thread(target=paint, args=(console, board, stop))]
    if screenshot is not None:
        threads.append(threading.Thread(target=_shoot, args=(board, screenshot, stop)))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _paint_live(console: Console, board: Board, stop: threading.Event) -> None:
    with Live(render(board, *console.size), console=console, refresh_per_second=8) as live:
        while not stop.wait(0.125):
            live.update(render(board, *console.size))
        live.update(render(board, *console.size))


def _print_lines(console: Console, board: Board, stop: threading.Event) -> None:
    told = 0
    stopped = False
    while not stopped:
        stopped = stop.wait(5)
        new = board.events[told:]
        told += len(new)
        for at, text, _ in new:
            console.print(f"{at:5.1f} s · [bold]{escape(text)}[/]", soft_wrap=True)
        console.print(line(board), highlight=False, markup=False, soft_wrap=True)


def _shoot(board: Board, screenshot: Path, stop: threading.Event) -> None:
    """Takes the picture a moment after the last kill: the story is on the screen then."""
    while not stop.wait(0.2):
        if len(board.killed) >= PROCESSES_KILLED and board.waiting_since is None:
            stop.wait(1)
            picture = Console(record=True, width=PICTURE_WIDTH, file=io.StringIO())
            picture.print(render(board, PICTURE_WIDTH))
            drawn = picture.export_svg(title="make demo")
            # The picture must not fetch fonts: any monospaced one will do.
            screenshot.write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL))
            return


def show_outcome(console: Console, board: Board, outcome: Outcome) -> None:
    """The result as a table, then PASS or FAIL with the reasons."""
    frame = pd.DataFrame(
        [(carrier, *value) for (_, carrier), value in outcome.streamed.items()],
        columns=["carrier", "flights", "departed", "delay"],
    )
    sums = frame.groupby("carrier").sum().sort_values("flights", ascending=False)
    table = Table(title="What Spark has written back, by carrier", title_style="bold")
    for column in ("carrier", "flights", "cancelled", "mean delay", ""):
        table.add_column(column, justify="left" if column in ("carrier", "") else "right")
    most = max(sums["flights"].tolist(), default=0) or 1
    for carrier, row in sums.iterrows():
        mean = row["delay"] / row["departed"] if row["departed"] else 0.0
        bar = "█" * max(1, round(30 * row["flights"] / most))
        cancelled = row["flights"] - row["departed"]
        table.add_row(
            str(carrier),
            f"{row['flights']:,}",
            f"{cancelled:,}",
            f"{mean:.1f} min",
            f"[cyan]{bar}[/]",
        )
    console.print(table)
    console.print(
        f"{outcome.flights:,} flights enriched · {len(outcome.streamed):,} hourly windows in "
        f"{outcome.updates:,} updates · aborted and seen by nobody: "
        f"{outcome.aborted['enriched']:,} flights, {outcome.aborted['delays']:,} updates · nothing "
        f"could be written to the killed leader's busiest partition for "
        f"{board.write_gap_s or 0:.2f} s · {time.monotonic() - board.began:.0f} s in all"
    )
    for reason in outcome.reasons:
        console.print(f"[bold red]FAIL[/]: {escape(reason)}")
    if not outcome.reasons:
        console.print(
            "[bold green]PASS[/]: every flight arrived and was enriched exactly once, in order per "
            "carrier; the last value of every window equals the source file's, no update is there "
            "twice, and nothing of an aborted transaction is seen"
        )
