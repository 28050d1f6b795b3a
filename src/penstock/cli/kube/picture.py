"""Draws a status and an explanation for people, with rich. Columns shrink in a narrow terminal.

✔ fine   ● somebody should know   ✘ broken;   in a pipe the same, without colours
"""

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from penstock.cli.kube.why import Explanation
from penstock.cli.output import printable
from penstock.kubernetes.resources import Json
from penstock.views.findings import some

GOOD: Final = "green"
BAD: Final = "bold red"
ODD: Final = "yellow"
DIM: Final = "dim"
PIPE_WIDTH: Final = 160
_NOT_READ: Final = f"[{ODD}]not known: it could not be read[/]"
_NOT_ALL: Final = f"[{ODD}]not all known: some topics could not be read[/]"


def make_console() -> Console:
    """As wide as the terminal; wide enough for everything in a pipe."""
    console = _Console(highlight=False, soft_wrap=False)
    return console if console.is_terminal else _Console(highlight=False, width=PIPE_WIDTH)


class _Console(Console):
    """Leaves a closed pipe to the command: rich would end the program with 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def show_status(status: Json, console: Console) -> None:
    """The whole picture."""
    _head(status, console)
    _conditions(status, console)
    unread = status["unread"]
    _rows(console, "Brokers", [_broker(one) for one in status["brokers"]], _count(status))
    _partitions(status["partitions"], console)
    topics = [_topic(one) for one in status["topics"]]
    if topics:
        _rows(console, "Topics", topics)
    controllers = [_controller(one) for one in status["controllers"]]
    _rows(console, "Controllers", controllers, _NOT_READ if "Pod" in unread else "")
    if status["storage"]:
        _rows(console, "Storage", [_claim(one) for one in status["storage"]])
    if status["events"]:
        _rows(console, "Last events", [_event(one) for one in status["events"]])
    for gap in status["gaps"]:
        console.print(f"[{ODD}]could not read everything:[/] {_plain(gap)}")
    if not status["ready"]:
        name = status["cluster"].partition("/")[2]
        console.print(f"\nMore: [bold]kubectl penstock why {_plain(name)}[/]")


def show_explanation(explanation: Explanation, console: Console) -> None:
    """A numbered list, causes first."""
    if not explanation.findings:
        console.print(
            f"[{GOOD}]✔[/] {_plain(explanation.subject)} is ready, and not waiting for anything"
        )
        return
    head = f"[{GOOD}]✔[/]" if explanation.served else f"[{BAD}]✘[/]"
    state = "is ready, but" if explanation.ready else "is not ready"
    console.print(f"{head} [bold]{_plain(explanation.subject)}[/] {state}")
    for number, one in enumerate(explanation.findings, 1):
        since = f" [{DIM}]· {_plain(one.since)}[/]" if one.since else ""
        console.print(f"\n{number}. [bold]{_plain(one.subject)}[/] {_plain(one.what)}{since}")
        for line in one.evidence:
            console.print(f"     [{DIM}]│[/] {_plain(line)}")
        if one.do:
            console.print(f"     [{GOOD}]→[/] {_plain(one.do)}")


def _head(status: Json, console: Console) -> None:
    mark = f"[{GOOD}]✔ Ready[/]" if status["ready"] else f"[{BAD}]✘ Not ready[/]"
    if status["paused"]:
        mark += f" [{ODD}]● paused[/]"
    if status["operator_active"] is False:
        mark += f" [{ODD}]● no operator is active: what conditions say may be old[/]"
    if status["deleting"]:
        mark += f" [{BAD}]● {_plain(status['deleting'])}[/]"
    phase = f" · {status['phase']}" if status["phase"] else ""
    console.print(f"[bold]{_plain(status['cluster'])}[/]  {mark}{_plain(phase)}")
    if status["message"] and not status["ready"]:
        console.print(f"  {_plain(status['message'])}")
    facts = [
        f"{label} {status[key]}"
        for label, key in (("id", "cluster_id"), ("age", "age"), ("bootstrap", "bootstrap"))
        if status[key]
    ]
    if facts:
        console.print(f"  [{DIM}]{_plain(' · '.join(facts))}[/]")


def _conditions(status: Json, console: Console) -> None:
    rows = []
    for one in status["conditions"]:
        fine = one["status"] == ("True" if one["type"] == "Ready" else "False")
        style = GOOD if fine else BAD if one["type"] != "Reconciling" else ODD
        rows.append(
            {
                "condition": one["type"],
                "is": Text(str(one["status"]), style),
                "for": one["for"],
                "reason": one["reason"],
                "message": one["message"],
            }
        )
    _rows(console, "Conditions", rows)


def _count(status: Json) -> str:
    if "Pod" in status["unread"]:
        return _NOT_READ
    ready = sum(bool(one["ready"]) for one in status["brokers"])
    wanted = status["brokers_desired"]
    return f"{ready} of {wanted if wanted is not None else len(status['brokers'])} ready"


def _broker(one: Json) -> Json:
    return {
        "broker": Text(str(one["broker"]), justify="right"),
        "pod": one["pod"],
        "node": one["node"],
        "phase": _good(one["phase"], one["phase"] in ("Running", None)),
        "ready": _yes(one["ready"]),
        "registered": _yes(one["registered"]),
        "leaders": Text(_count_of(one["leaders"]), justify="right"),
        "replicas": Text(_count_of(one["replicas"]), justify="right"),
        "restarts": Text(str(one["restarts"] or 0), justify="right"),
        "rack": one["rack"],
    }


def _controller(one: Json) -> Json:
    return {
        "pod": one["pod"],
        "node": one["node"],
        "phase": _good(one["phase"], one["phase"] == "Running"),
        "ready": _yes(one["ready"]),
        "restarts": Text(str(one["restarts"]), justify="right"),
        "": Text("holds the Lease", GOOD) if one["active"] else None,
    }


def _topic(one: Json) -> Json:
    state = Text("paused", ODD) if one["paused"] else _yes(one["ready"])
    return {
        "topic": one["topic"],
        "ready": state,
        "partitions": Text(str(one["partitions"] if one["partitions"] is not None else "-")),
        "replicas": Text(str(one["replicas"] if one["replicas"] is not None else "-")),
        "message": one["message"],
    }


def _claim(one: Json) -> Json:
    grows = one["size"] != one["wanted"]
    return {
        "claim": one["claim"],
        "phase": _good(one["phase"], one["phase"] == "Bound"),
        "size": Text(f"{one['size'] or '-'} → {one['wanted']}", ODD) if grows else one["size"],
        "class": one["class"],
    }


def _event(one: Json) -> Json:
    return {
        "ago": one["ago"],
        "type": _good(one["type"], one["type"] == "Normal"),
        "object": one["object"],
        "reason": one["reason"],
        "times": Text(str(one["times"]), justify="right"),
        "message": one["message"],
    }


def _partition_count(partitions: Json) -> str:
    return f"{partitions['total']} in {partitions['topics']} topics"


def _partitions(partitions: Json, console: Console) -> None:
    short = any(partitions[kind] for kind in _SHORT)
    if partitions["total"] is None:
        rest = _NOT_ALL if partitions["offline"] is not None else _NOT_READ
    elif partitions["current"] is False:
        rest = (
            f"{_partition_count(partitions)}  [{ODD}]● as last written: no controller is active[/]"
        )
    else:
        rest = _partition_count(partitions) + ("" if short else f"  [{GOOD}]✔ all in sync[/]")
    console.print(f"\n[bold]Partitions[/]  {rest}")
    for kind, (label, style) in _SHORT.items():
        names = partitions[kind]
        if names:
            console.print(f"  [{style}]{len(names)} {label}[/]: {_plain(some(names))}")


_SHORT: Final = {
    "offline": ("offline", BAD),
    "under_min_isr": ("below min.insync.replicas", BAD),
    "under_replicated": ("under-replicated", ODD),
    "damaged": ("with a damaged replica", ODD),
}


def _rows(console: Console, title: str, rows: Sequence[Json], note: str = "") -> None:
    """A table without borders below a title; "none" if there are no rows."""
    console.print(f"\n[bold]{title}[/]" + (f"  {note}" if note else ""))
    if not rows and note != _NOT_READ:
        console.print(f"  [{DIM}]none[/]")
    if not rows:
        return
    table = Table(box=None, padding=(0, 1, 0, 2), header_style=DIM)
    for name in rows[0]:
        long = name in ("message", "bootstrap")
        table.add_column(name.upper(), overflow="fold" if long else "ellipsis", no_wrap=not long)
    for row in rows:
        table.add_row(*(one if isinstance(one, Text) else _cell(one) for one in row.values()))
    console.print(table)


def _cell(value: object) -> Text:
    return Text("-", DIM) if value in (None, "") else Text(_shown(value))


def _count_of(value: int | None) -> str:
    return "-" if value is None else str(value)


def _yes(value: object) -> Text:
    if value is None:
        return Text("-", DIM)
    return Text("✔", GOOD) if value else Text("✘", BAD)


def _good(value: object, fine: bool) -> Text:
    return Text(_shown(value or "-"), "" if fine else BAD)


def _plain(text: str) -> str:
    """Neither markup nor escape codes, whatever others wrote into it."""
    return escape(_shown(text))


def _shown(value: object) -> str:
    """Messages of others may have several lines."""
    return printable(str(value), keep="\n\t")
