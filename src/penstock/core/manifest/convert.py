"""Converts one value of a manifest by its row: to the value Penstock uses, or problems.

    YAML scalar, list, mapping ──convert(row)──▶ int, str, bool, tuple, dict
                                       └───────▶ Report

A value is accepted or refused exactly as by the Kubernetes API server, whose schema is made from
the same row, so that a file that runs locally can be applied. This is why a setting is a string or
a whole number: a schema cannot express "or true or false", so those must be quoted.
"""

import datetime
import re
from collections.abc import Callable, Mapping
from typing import Final

from penstock.core.manifest.problems import Report, describe, did_you_mean, quote_hint
from penstock.core.manifest.rows import RESOURCE_PATTERN, Field, Kind
from penstock.core.quantities import QUANTITY_PATTERN

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def convert(row: Field, value: object, here: str, report: Report) -> object:
    """The value of any row except OBJECT and OBJECTS; problems go to the report."""
    return _CONVERTERS[row.kind](row, value, here, report)


def _refuse(row: Field, value: object, here: str, report: Report, hint: str = "") -> None:
    report.add(here, f"is {describe(value)}; it must be {row.kind.value}{hint}")


def _boolean(row: Field, value: object, here: str, report: Report) -> object:
    if not isinstance(value, bool):
        _refuse(row, value, here, report)
    return value


def _integer(row: Field, value: object, here: str, report: Report) -> object:
    if isinstance(value, bool) or not isinstance(value, int):
        _refuse(row, value, here, report)
    elif row.minimum is not None and value < row.minimum:
        report.add(here, f"is {value}; it must be at least {row.minimum}")
    elif row.maximum is not None and value > row.maximum:
        report.add(here, f"is {value}; it must be at most {row.maximum}")
    return value


def _text(row: Field, value: object, here: str, report: Report) -> object:
    if not isinstance(value, str):
        _refuse(row, value, here, report, quote_hint(value))
        return value
    _check_text(row, value, here, report)
    return value


def _check_text(row: Field, value: str, here: str, report: Report) -> None:
    if row.choices and value not in row.choices:
        hint = did_you_mean(value, row.choices)
        report.add(here, f"is {value!r}; it must be {' or '.join(row.choices)}{hint}")
    elif len(value) > row.max_length:
        report.add(here, f"has {len(value)} characters; the limit is {row.max_length}")
    elif row.pattern is not None and not re.fullmatch(row.pattern, value):
        report.add(here, f"is {value!r}; it must be {row.pattern_doc}")


def _scalar(row: Field, value: object, here: str, report: Report) -> object:
    """YAML parsers turn what looks like a time into one; this restores the text."""
    if isinstance(value, datetime.date):
        return value.isoformat()
    text = as_text(value)
    if text is None:
        _refuse(row, value, here, report, quote_hint(value))
        return value
    _check_text(row, text, here, report)
    return text


def as_text(value: object) -> str | None:
    """A text or whole number as text; None for anything a schema's int-or-string refuses."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and INT64_MIN <= value <= INT64_MAX:
        return str(value)
    return None


def _quantity(row: Field, value: object, here: str, report: Report) -> object:
    text = as_text(value)
    if text is None or len(text) > row.max_length or not re.fullmatch(QUANTITY_PATTERN, text):
        _refuse(row, value, here, report)
    return text


def _quantities(row: Field, value: object, here: str, report: Report) -> object:
    quantities: dict[str, str] = {}
    for key, quantity in _entries(row, value, here, report):
        text = as_text(quantity)
        if text is None or not re.fullmatch(RESOURCE_PATTERN, text):
            hint = quote_hint(quantity)
            report.add(
                f"{here}.{key}",
                f"is {describe(quantity)}; it must be a quantity such as 500m or 2Gi{hint}",
            )
        else:
            quantities[key] = text
    return quantities


def _texts(row: Field, value: object, here: str, report: Report) -> object:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        _refuse(row, value, here, report)
        return ()
    check_size(row, value, here, report)
    for number, item in enumerate(value):
        _check_text(row, item, f"{here}[{number}]", report)
    return tuple(value)


def _opaques(row: Field, value: object, here: str, report: Report) -> object:
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        _refuse(row, value, here, report)
        return ()
    check_size(row, value, here, report)
    return tuple(value)


def check_size(
    row: Field, value: "list[object] | Mapping[object, object]", here: str, report: Report
) -> None:
    """Reports a list or mapping with too few or too many entries."""
    if len(value) < row.min_items:
        report.add(here, f"has {len(value)} entries; it must have at least {row.min_items}")
    if len(value) > row.max_items:
        report.add(here, f"has {len(value)} entries; the limit is {row.max_items}")


def _entries(row: Field, value: object, here: str, report: Report) -> list[tuple[str, object]]:
    """The entries of a mapping whose keys are strings; null ones are absent."""
    if not isinstance(value, Mapping):
        _refuse(row, value, here, report)
        return []
    check_size(row, value, here, report)
    for key in value:
        if not isinstance(key, str):
            report.add(here, f"has the key {describe(key)}; names must be strings{quote_hint(key)}")
    named = [(key, entry) for key, entry in value.items() if isinstance(key, str)]
    return [(key, entry) for key, entry in named if entry is not None]


def _labels(row: Field, value: object, here: str, report: Report) -> object:
    labels: dict[str, str] = {}
    for key, label in _entries(row, value, here, report):
        if isinstance(label, str):
            _check_text(row, label, f"{here}.{key}", report)
            labels[key] = label
        else:
            hint = quote_hint(label)
            report.add(f"{here}.{key}", f"is {describe(label)}; it must be a string{hint}")
    return labels


def _settings(row: Field, value: object, here: str, report: Report) -> object:
    settings: dict[str, str] = {}
    for key, setting in _entries(row, value, here, report):
        text = as_text(setting)
        if text is not None:
            settings[key] = text
            continue
        hint = quote_hint(setting)
        report.add(
            f"{here}.{key}", f"is {describe(setting)}; it must be a string or a whole number{hint}"
        )
    return settings


_CONVERTERS: Final[Mapping[Kind, Callable[[Field, object, str, Report], object]]] = {
    Kind.INTEGER: _integer,
    Kind.BOOLEAN: _boolean,
    Kind.TEXT: _text,
    Kind.TIME: _text,
    Kind.SCALAR: _scalar,
    Kind.TEXTS: _texts,
    Kind.QUANTITY: _quantity,
    Kind.QUANTITIES: _quantities,
    Kind.LABELS: _labels,
    Kind.SETTINGS: _settings,
    Kind.OPAQUES: _opaques,
}
"""Objects are read by `fields.read_fields`, which calls this module for their fields."""
assert set(Kind) - _CONVERTERS.keys() == {Kind.OBJECT, Kind.OBJECTS}
