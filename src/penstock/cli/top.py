"""`penstock top`: the cluster live in a terminal; the console's rows without a browser.

Names come from clients: whatever is not printable in them is replaced, so that no escape code
reaches the terminal.
"""

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli.connect import Located, locate
from penstock.cli.options import Bootstrap, Output, OutputOption, example
from penstock.cli.output import keep_code, print_document, printable
from penstock.cli.usage import WrongUsageError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table as Drawn
    from rich.text import Text

    from penstock.ui.reader import Reader
    from penstock.views.cells import Cell, Table
    from penstock.views.overview import Explanation
    from penstock.views.top import Top

GROUPS_ASKED: Final = 100
"""The lag of more groups would cost more than a look is worth."""
RATE_S: Final = 2.5
"""Between the two looks of --once: longer than answers are kept."""
ROWS_ONCE: Final = 1_000
FINDINGS_SHOWN: Final = 5
_STYLES: Final = {"good": "green", "odd": "yellow", "bad": "bold red", "dim": "dim", "": ""}


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(epilog=example("penstock top", "penstock top --once -o json | jq .groups"))(top)


def top(
    *,
    once: Annotated[
        bool, typer.Option("--once", help="Print one look, after measuring rates, and end.")
    ] = False,
    interval: Annotated[
        float, typer.Option(min=1, max=3_600, help="Seconds between two looks.")
    ] = 2.0,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Watch brokers, the busiest topics and the groups that are furthest behind, until Ctrl-C.

    Of more than 100 groups, only the first 100 by name are asked for their lag, and it says so.
    Exit code 1 with --once if some clients are not served.
    """
    if not once and (output is not Output.TABLE or not sys.stdout.isatty()):
        raise WrongUsageError(
            "without a terminal, or with -o json, add --once: the live view needs a terminal"
        )
    import asyncio  # noqa: PLC0415 - not needed for --help

    where = locate(bootstrap)
    if not once:
        asyncio.run(_watch(where, interval))
        return
    seen = asyncio.run(_look_once(where))
    with keep_code():
        if output is Output.TABLE:
            from penstock.cli.kube.picture import make_console  # noqa: PLC0415 - rich when needed

            make_console().print(_draw(seen))
        else:
            print_document(seen.to_dict(), output)
    if seen.why.tone == "bad":
        raise typer.Exit(1)


async def _look_once(where: Located) -> "Top":
    import asyncio  # noqa: PLC0415 - not needed for --help

    from penstock.ui.reader import Reader  # noqa: PLC0415 - grpc only when it is needed

    reader = Reader(where.bootstrap, **where.options)
    try:
        if (await reader.logs()).value is not None:
            await asyncio.sleep(RATE_S)
        return await _look(reader, ROWS_ONCE)
    finally:
        await reader.close()


async def _watch(where: Located, interval_s: float) -> None:
    import asyncio  # noqa: PLC0415 - not needed for --help

    from rich.console import Console  # noqa: PLC0415 - only for the live view
    from rich.live import Live  # noqa: PLC0415

    from penstock.ui.reader import Reader  # noqa: PLC0415 - grpc only when it is needed

    console = Console(highlight=False)
    reader = Reader(where.bootstrap, **where.options)
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                seen = await _look(reader, max(3, (console.height - 16) // 2))
                live.update(_draw(seen), refresh=True)
                await asyncio.sleep(interval_s)
    finally:
        await reader.close()


async def _look(reader: "Reader", rows: int) -> "Top":
    from penstock.views.top import TopAnswers, look  # noqa: PLC0415 - with the reader

    cluster = await reader.overview()
    if cluster.cluster.value is None:
        from penstock.views.answers import Answer  # noqa: PLC0415 - with the reader

        return look(TopAnswers(cluster, Answer(), {}, Answer(), {}), rows)
    topics, listed = await reader.topics(), await reader.groups()
    asked = [one.group_id for one in (listed.value or ())[:GROUPS_ASKED]]
    groups = await reader.several_groups(asked)
    return look(TopAnswers(cluster, topics, await reader.traffic(), listed, groups), rows)


def _draw(seen: "Top") -> "RenderableType":
    from rich.console import Group  # noqa: PLC0415 - rich only when it is needed
    from rich.text import Text  # noqa: PLC0415

    parts: list[RenderableType] = draw_explanation(seen.why, FINDINGS_SHOWN)
    parts += [Text(f"  could not read: {printable(one)}", "yellow") for one in seen.problems]
    line = Text()
    for fact in seen.facts:
        line.append(f"{fact.label} ", "dim").append_text(_cell(fact.cell)).append("   ")
    parts.append(line)
    for table in seen.tables:
        title = Text(f"\n{table.title}", "bold").append(f"  {table.note}", "dim")
        parts += [title, _table(table) if table.rows else Text(f"  {table.empty}", "dim")]
    return Group(*parts)


def draw_explanation(why: "Explanation", findings_max: int | None = None) -> "list[RenderableType]":
    """The sentence, and what is wrong with what to do, one line each."""
    from rich.text import Text  # noqa: PLC0415 - rich only when it is needed

    lines: list[RenderableType] = [Text(f"{why.mark} {printable(why.sentence)}", _STYLES[why.tone])]
    for one in why.findings[:findings_max]:
        lines.append(Text(f"  {printable(one.subject)} {printable(one.what)}"))
        if one.do:
            lines.append(Text(f"    → {printable(one.do)}", "green"))
    return lines


def _table(table: "Table") -> "Drawn":
    from rich.table import Table as Drawn  # noqa: PLC0415 - rich only when it is needed

    drawn = Drawn(box=None, padding=(0, 1, 0, 2), header_style="dim")
    for column in table.columns:
        drawn.add_column(
            column.title.upper(),
            justify="right" if column.numeric else "left",
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in table.rows:
        drawn.add_row(*map(_cell, row))
    return drawn


def _cell(cell: "Cell") -> "Text":
    from rich.text import Text  # noqa: PLC0415 - rich only when it is needed

    return Text(printable(cell.text), _STYLES[cell.tone])
