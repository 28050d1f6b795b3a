"""The live view: how far the flights are, transactions, who leads, what was killed.

`Board` is the state, filled by the demo's threads; `render` turns it into one screen of a
terminal's size. Without a terminal (CI, a pipe) `line` gives the same in one line.
"""

from dataclasses import dataclass, field
from time import monotonic

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

EVENTS_SHOWN = 8
LEADERS_WIDTH = 48
WIDE = 100
"""Columns from which on the leaders and the story are next to each other."""
BAR_WIDTH = 54


@dataclass(slots=True)
class PartitionRow:
    """One partition as the cluster describes it."""

    partition: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    high_watermark: int = 0


@dataclass(slots=True)
class Board:
    """Counts are flights unless said otherwise; written by one thread each, read by the view.

    `transactions_ended`: "commit", or the reason of an abort, and how many.
    """

    total: int
    began: float = field(default_factory=monotonic)
    produced: int = 0
    acknowledged: int = 0
    replicated: int = 0
    enriched: int = 0
    in_windows: int = 0
    windows: int = 0
    updates: int = 0
    transactions_open: int = 0
    transactions_ended: dict[str, int] = field(default_factory=dict)
    down: set[int] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    killed: list[str] = field(default_factory=list)
    brokers: tuple[int, ...] = ()
    partitions: list[PartitionRow] = field(default_factory=list)
    events: list[tuple[float, str, str]] = field(default_factory=list)
    write_gap_s: float | None = None
    waiting_since: float | None = None

    def tell(self, text: str, style: str = "") -> None:
        """Adds a line to the story, with the time since the start."""
        self.events.append((monotonic() - self.began, text, style))

    @property
    def aborted(self) -> int:
        return sum(count for how, count in self.transactions_ended.items() if how != "commit")

    @property
    def gap_text(self) -> str:
        if self.waiting_since is not None:
            return f"{monotonic() - self.waiting_since:.2f} s and counting"
        return "none yet" if self.write_gap_s is None else f"{self.write_gap_s:.2f} s"


def render(board: Board, width: int = WIDE, height: int = 25) -> RenderableType:
    """One screen of so many columns and lines. On a narrow one the story is below the leaders, and
    has as many of its newest lines as there is room for."""
    elapsed = monotonic() - board.began
    title = f"[bold]Penstock[/] · {board.total:,} flights of 2013 · {elapsed:5.1f} s"
    bars, leaders = _bars(board, width), _leaders(board)
    upper = Panel(bars, title=title, border_style="cyan")
    if width >= WIDE:
        lower = Table.grid(expand=True)
        lower.add_column(width=LEADERS_WIDTH)
        lower.add_column(ratio=1)
        lower.add_row(leaders, _story(board, EVENTS_SHOWN, max(len(board.partitions), 6) + 4))
        return Group(upper, lower)
    # Three frames of two lines, the heading of the leaders, and the line that Live ends with.
    room = height - bars.row_count - len(board.partitions) - 8
    shown = max(1, min(EVENTS_SHOWN, room))
    return Group(upper, leaders, _story(board, shown, shown + 2))


def _bars(board: Board, width: int) -> Table:
    wide = width >= WIDE
    grid = Table.grid(padding=(0, 2 if wide else 1), expand=not wide)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(width=BAR_WIDTH if wide else None, ratio=None if wide else 1, no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    rows = [
        ("produced", board.produced, "white"),
        ("acknowledged by all replicas", board.acknowledged, "green"),
        ("below the high watermark", board.replicated, "cyan"),
        ("enriched, committed", board.enriched, "yellow"),
        ("in Spark's windows, committed", board.in_windows, "magenta"),
    ]
    for label, count, style in rows:
        bar = ProgressBar(total=board.total, completed=count, complete_style=style)
        grid.add_row(label, bar, f"{count:,}")
    sink = f"{board.updates:,} updates of {board.windows:,} hourly windows"
    grid.add_row("written back by Spark", Text(sink, style="magenta"))
    grid.add_row("transactions", _transactions(board))
    style = "bold red" if board.waiting_since is not None else "bold"
    gap = Text(board.gap_text, style=style).append(", killed leader's partition", style="default")
    grid.add_row("longest write gap", gap)
    return grid


def _transactions(board: Board) -> Text:
    """`1 open · 1,024 committed · 2 aborted`"""
    ended = board.transactions_ended
    text = Text(f"{board.transactions_open} open · ")
    text.append(f"{ended.get('commit', 0):,} committed", style="green")
    return text.append(f" · {board.aborted} aborted", style="bold red" if board.aborted else "")


def _leaders(board: Board) -> Panel:
    table = Table(box=None, padding=(0, 1))
    table.add_column("partition", justify="right")
    table.add_column("leader", justify="right")
    table.add_column("epoch", justify="right")
    table.add_column("in sync")
    table.add_column("flights", justify="right")
    for row in board.partitions:
        leader = Text(str(row.leader) if row.leader >= 0 else "none", style=_colour(row.leader))
        in_sync = Text(" ").join(
            Text(str(broker), style=_colour(broker) if broker in row.isr else "dim strike")
            for broker in row.replicas
        )
        table.add_row(
            str(row.partition), leader, str(row.leader_epoch), in_sync, f"{row.high_watermark:,}"
        )
    down = _down(board)
    title = f"who leads · {down}" if down else "who leads"
    return Panel(table, title=title, border_style="red" if down else "blue")


def _down(board: Board) -> str:
    """`broker 1, the transformer down`; "" when all run."""
    names = [*(f"broker {broker}" for broker in sorted(board.down)), *sorted(board.dead)]
    return f"{', '.join(names)} down" if names else ""


def _story(board: Board, shown: int, height: int) -> Panel:
    text = Text(no_wrap=True, overflow="ellipsis")
    for at, line, style in board.events[-shown:]:
        text.append(f"{at:5.1f} s  ", style="dim")
        text.append(line + "\n", style=style)
    return Panel(text, title="what happened", border_style="blue", height=height)


def line(board: Board) -> str:
    """The board in one line, for logs."""
    down = _down(board)
    return (
        f"{monotonic() - board.began:5.1f} s · produced {board.produced:,} · acknowledged "
        f"{board.acknowledged:,} · replicated {board.replicated:,} · enriched {board.enriched:,} · "
        f"in windows {board.in_windows:,} · transactions {board.transactions_open} open, "
        f"{board.transactions_ended.get('commit', 0):,} committed, {board.aborted} aborted"
        + (f" · {down}" if down else "")
    )


def _colour(broker: int) -> str:
    return ("bold yellow", "bold cyan", "bold green", "bold magenta")[broker % 4]
