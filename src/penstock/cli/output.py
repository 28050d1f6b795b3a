"""Prints results: aligned columns for people, JSON or YAML for programs.

A result is a list of rows, or one record with lists inside; keys are snake_case. Tables look as
kubectl's do: no borders, so that they survive a pipe; units are in the column names.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final, TextIO

from penstock.cli.options import Output

Row = Mapping[str, object]
_SPELLED: Final = {"mib": "MiB", "isr": "ISR"}
"""Words of keys that are not written in lower case elsewhere."""


@contextmanager
def keep_code() -> Iterator[None]:
    """Round all that a command prints before it exits with a code that says how things are: that
    counts even if nobody reads the rest (`penstock status | head -1`)."""
    with suppress(BrokenPipeError):
        yield
        sys.stdout.flush()


def print_rows(rows: Sequence[Row], output: Output, empty: str = "nothing to show") -> None:
    """A list of like records."""
    if output is not Output.TABLE:
        print_document(list(rows), output)
    elif rows:
        sys.stdout.write(format_table(rows))
    else:
        sys.stderr.write(empty + "\n")


def print_record(record: Row, output: Output) -> None:
    """One record: scalars as `name: value`, lists of records as tables below."""
    if output is not Output.TABLE:
        print_document(record, output)
        return
    scalars = {key: value for key, value in record.items() if not _is_rows(value)}
    width = max((len(key) for key in scalars), default=0)
    for key, value in scalars.items():
        sys.stdout.write(f"{_title(key) + ':':<{width + 2}}{_cell(value)}\n")
    for key, value in record.items():
        if _is_rows(value):
            sys.stdout.write(f"\n{_title(key)}:\n")
            assert isinstance(value, list)
            sys.stdout.write(format_table(value) if value else "  none\n")


def print_document(document: object, output: Output, file: TextIO | None = None) -> None:
    """As JSON or YAML."""
    file = file or sys.stdout
    if output is Output.YAML:
        import yaml  # noqa: PLC0415 - not needed for --help

        text = yaml.safe_dump(json.loads(json.dumps(document)), sort_keys=False, allow_unicode=True)
        file.write(text)
    else:
        file.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def format_table(rows: Sequence[Row]) -> str:
    """Columns are the first row's keys; columns of numbers are right-aligned."""
    columns = list(rows[0])
    header = [column.upper().replace("_", "-") for column in columns]
    cells = [[_cell(row[column]) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in [header, *cells]) for i in range(len(columns))]
    numeric = [all(_is_number(row[column]) for row in rows) for column in columns]
    lines = []
    for line in [header, *cells]:
        parts = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ]
        lines.append("   ".join(parts).rstrip())
    return "\n".join(lines) + "\n"


def printable(text: str, keep: str = "") -> str:
    """What clients and others named: no escape code in it reaches the terminal. `keep`: characters
    that may stay besides."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else "�" for one in text)


def _cell(value: object) -> str:
    return printable(_text(value))


def _text(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value) or "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items()) or "-"
    return str(value)


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _is_rows(value: object) -> bool:
    return isinstance(value, list) and (not value or isinstance(value[0], Mapping))


def _title(key: str) -> str:
    words = [_SPELLED.get(word, word) for word in key.split("_")]
    text = " ".join(words)
    return text[:1].upper() + text[1:]
