"""A field of a manifest as a row of a table, and the reader that holds YAML against such rows.

    parsed YAML ──read_fields(rows)──▶ Values (every row present, defaults filled in)
                                └────▶ Problems (all of them, each with its path)

The reader never raises and never stops at the first mistake: a wrong value is reported and
replaced by the row's default, so that checks further on still run. Rows say nothing that a
Kubernetes structural schema could not say too (type, range, pattern, enum, default).
Next step: `parse` builds objects from the values and checks what spans several objects.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import assert_never


class Kind(Enum):
    """What a field holds. The value is how a message names it to the user."""

    INTEGER = "a whole number"
    BOOLEAN = "true or false"
    TEXT = "text"
    TEXTS = "a list of texts"
    QUANTITY = "a quantity such as 10Gi"
    SETTINGS = "a mapping of setting names to values"
    OBJECT = "a mapping"
    OPAQUE = "a mapping, whatever it holds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One row: name as written in YAML, type, meaning, limits.

    `default` None with `required` False: absent stays absent (`doc` says what that means).
    `minimum` and `maximum` are inclusive and bound an INTEGER; `max_length` bounds TEXT and is
    in characters; `pattern` must match all of a TEXT. `immutable` fields never change once
    applied. `fields` are the rows of an OBJECT.
    """

    name: str
    kind: Kind
    doc: str
    default: int | str | bool | None = None
    required: bool = False
    minimum: int | None = None
    maximum: int | None = None
    max_length: int | None = None
    pattern: str | None = None
    pattern_doc: str = ""
    choices: tuple[str, ...] = ()
    immutable: bool = False
    fields: "tuple[Field, ...]" = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: where (`Topic/flights: spec.replicas`) and what to do about it."""

    subject: str
    path: str
    text: str

    def __str__(self) -> str:
        sentence = f"{self.path} {self.text}" if self.path else self.text
        return f"{self.subject}: {sentence}" if self.subject else sentence


class Report:
    """Collects the problems of one object. `subject` is how the user knows it: `Topic/flights`."""

    __slots__ = ("problems", "subject")

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.problems: list[Problem] = []

    def add(self, path: str, text: str) -> None:
        self.problems.append(Problem(self.subject, path, text))


class Values:
    """Read values of one OBJECT by field name. Accessors assert what the table promises."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values

    def integer(self, name: str) -> int:
        value = self._values[name]
        assert isinstance(value, int)
        return value

    def optional_integer(self, name: str) -> int | None:
        value = self._values[name]
        assert value is None or isinstance(value, int)
        return value

    def text(self, name: str) -> str:
        """The text; empty if absent."""
        value = self._values[name]
        assert value is None or isinstance(value, str)
        return value or ""

    def texts(self, name: str) -> tuple[str, ...]:
        """The list; empty if absent."""
        value = self._values[name] or ()
        assert isinstance(value, tuple)
        return value

    def settings(self, name: str) -> dict[str, str]:
        """The mapping; empty if absent. Scalars have become the text Kafka would use."""
        value = self._values[name] or {}
        assert isinstance(value, dict)
        return value

    def nested(self, name: str) -> "Values":
        value = self._values[name]
        assert isinstance(value, Values)
        return value


def read_fields(rows: tuple[Field, ...], given: object, path: str, report: Report) -> Values:
    """Holds a mapping against its rows. `given` None counts as an empty mapping.

    Returns a value for every row; what was wrong is in `report` and has its default here.
    """
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        report.add(path, f"is {describe(given)}; it must be a mapping")
        given = {}
    known = {row.name for row in rows}
    for key in given:
        if key not in known:
            here = _join(path, str(key))
            report.add(here, f"is not a known field{did_you_mean(str(key), known)}")
    return Values({row.name: _read(row, given, path, report) for row in rows})


def _read(row: Field, given: Mapping[object, object], path: str, report: Report) -> object:
    here = _join(path, row.name)
    value = given.get(row.name)
    if row.kind is Kind.OBJECT:
        return read_fields(row.fields, value, here, report)
    if value is None:
        if row.required:
            report.add(here, f"is missing; it must be {row.kind.value}: {row.doc}")
        return row.default
    before = len(report.problems)
    read = _convert(row, value, here, report)
    return read if len(report.problems) == before else row.default


def _convert(row: Field, value: object, here: str, report: Report) -> object:
    match row.kind:
        case Kind.INTEGER:
            return _integer(row, value, here, report)
        case Kind.TEXT:
            return _text(row, value, here, report)
        case Kind.BOOLEAN:
            return _instance(row, value, bool, here, report)
        case Kind.OPAQUE:
            return _instance(row, value, Mapping, here, report)
        case Kind.QUANTITY:
            return _quantity(row, value, here, report)
        case Kind.TEXTS:
            return _texts(row, value, here, report)
        case Kind.SETTINGS:
            return _settings(row, value, here, report)
        case Kind.OBJECT:
            raise AssertionError("objects are read by read_fields")
        case _:
            assert_never(row.kind)


def _instance(row: Field, value: object, kind: type, here: str, report: Report) -> object:
    if not isinstance(value, kind):
        report.add(here, f"is {describe(value)}; it must be {row.kind.value}")
    return value


def _integer(row: Field, value: object, here: str, report: Report) -> object:
    if isinstance(value, bool) or not isinstance(value, int):
        report.add(here, f"is {describe(value)}; it must be {row.kind.value}")
    elif row.minimum is not None and value < row.minimum:
        report.add(here, f"is {value}; it must be at least {row.minimum}")
    elif row.maximum is not None and value > row.maximum:
        report.add(here, f"is {value}; it must be at most {row.maximum}")
    return value


def _text(row: Field, value: object, here: str, report: Report) -> object:
    if not isinstance(value, str):
        report.add(here, f"is {describe(value)}; it must be {row.kind.value}{_quote_hint(value)}")
    elif row.choices and value not in row.choices:
        hint = did_you_mean(value, row.choices)
        report.add(here, f"is {value!r}; it must be {' or '.join(row.choices)}{hint}")
    elif row.max_length is not None and len(value) > row.max_length:
        report.add(here, f"has {len(value)} characters; the limit is {row.max_length}")
    elif row.pattern is not None and not re.fullmatch(row.pattern, value):
        report.add(here, f"is {value!r}; it must be {row.pattern_doc}")
    return value


def _quantity(row: Field, value: object, here: str, report: Report) -> object:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not re.fullmatch(QUANTITY_PATTERN, text):
        report.add(here, f"is {describe(value)}; it must be {row.kind.value}")
    return text


QUANTITY_PATTERN = r"[1-9][0-9]*(\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?"
"""The part of Kubernetes' quantities that makes sense for sizes; no unit means bytes."""


def _texts(row: Field, value: object, here: str, report: Report) -> object:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        report.add(here, f"is {describe(value)}; it must be {row.kind.value}")
        return ()
    return tuple(value)


def _settings(row: Field, value: object, here: str, report: Report) -> object:
    if not isinstance(value, Mapping):
        report.add(here, f"is {describe(value)}; it must be {row.kind.value}")
        return None
    settings: dict[str, str] = {}
    for key, setting in value.items():
        if not isinstance(key, str):
            report.add(here, f"has the key {describe(key)}; setting names are texts")
        elif isinstance(setting, bool):
            settings[key] = "true" if setting else "false"
        elif isinstance(setting, str | int | float):
            settings[key] = str(setting)
        else:
            report.add(f"{here}.{key}", f"is {describe(setting)}; it must be a text or a number")
    return settings


def describe(value: object) -> str:
    """A value as a message shows it: short, with its kind where that is the mistake."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the text {_shorten(value)!r}"
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return f"{_shorten(str(value))} ({type(value).__name__})"


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """`; did you mean x?`, or else what is known, or nothing if that would be long."""
    names = sorted(known)
    folded = {name.lower(): name for name in names}
    close = difflib.get_close_matches(given.lower(), folded, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {folded[close[0]]}?"
    return f"; known here: {', '.join(names)}" if names and len(names) <= 12 else ""


def _quote_hint(value: object) -> str:
    return " (put it in quotes)" if isinstance(value, int | float) else ""


def _shorten(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
