"""Tables of cells: what pages, terminals and programs print alike.

A cell has `value`, for programs (numbers in bytes, records, milliseconds), and `text`, for people.
None is what is not known; it is shown as "–". `tone` colours a word that says the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from penstock.views.findings import count_age

Tone = Literal["", "good", "odd", "bad", "dim"]
UNKNOWN: Final = "–"
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(frozen=True, slots=True)
class Cell:
    """`href`: a page of the console. `time_ms`: `value` is a moment. `share`: 0 to 1, for a bar."""

    value: object
    text: str
    tone: Tone = ""
    href: str = ""
    title: str = ""
    time_ms: int | None = None
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """`key`: for programs. Numbers stand at the right."""

    key: str
    title: str
    numeric: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """`empty`: what to do if there are no rows. `note`: what is left out."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    empty: str = ""
    note: str = ""

    def to_rows(self) -> list[dict[str, object]]:
        """For programs."""
        return [
            {column.key: cell.value for column, cell in zip(self.columns, row, strict=True)}
            for row in self.rows
        ]


@dataclass(frozen=True, slots=True)
class Fact:
    """A labelled value outside of a table."""

    label: str
    cell: Cell


def text(value: str | None, href: str = "", tone: Tone = "", title: str = "") -> Cell:
    return Cell(value, value, tone, href, title) if value else Cell(value, UNKNOWN, "dim")


def number(value: int | None, tone: Tone = "") -> Cell:
    return unknown() if value is None else Cell(value, f"{value:,}", tone)


def identifier(value: int | None) -> Cell:
    """A number that counts nothing: of a partition, a broker, an offset."""
    return unknown() if value is None else Cell(value, str(value))


def brokers(ids: Sequence[int], tone: Tone = "") -> Cell:
    return Cell(list(ids), ", ".join(map(str, ids)) or UNKNOWN, tone)


def size(value: int | None, tone: Tone = "") -> Cell:
    return unknown() if value is None else Cell(value, bytes_text(value), tone, "", f"{value:,} B")


def rate(value: float | None, unit: str = "") -> Cell:
    """Per second; `unit` "B": bytes."""
    if value is None:
        return unknown()
    shown = bytes_text(int(value)) if unit == "B" else f"{value:,.0f}"
    if unit != "B" and 0 < value < 10:
        shown = f"{value:,.1f}"
    return Cell(round(value, 3), f"{shown}/s", "dim" if value == 0 else "")


def age(value_ms: int | None, tone: Tone = "") -> Cell:
    """A duration in ms, for programs in seconds."""
    if value_ms is None:
        return unknown()
    seconds = value_ms / 1000
    shown = f"{seconds:.1f}s" if 0 < seconds < 10 else count_age(seconds)
    return Cell(round(seconds, 3), shown, tone, "", f"{seconds:,.3f} s")


def moment(value_ms: int | None) -> Cell:
    """Milliseconds since 1970; the page shows it in local time."""
    return Cell(value_ms, "", time_ms=value_ms) if value_ms else unknown()


def unknown(title: str = "") -> Cell:
    return Cell(None, UNKNOWN, "dim", "", title)


def bytes_text(value: int) -> str:
    """`1.2 MiB`."""
    amount, unit = float(value), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{value} B" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


def plural(count: int, noun: str) -> str:
    """`1 topic`, `2 topics`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
