"""The reader that checks YAML against rows.

    parsed YAML ──read_fields(rows)──▶ Values (every row present, defaults filled in)
                                └────▶ Problems (all of them, each with its path)

The reader never raises and never stops at the first mistake: a wrong value is reported and
replaced by the row's default, so that later checks still run. Null is absent: the API server
drops nulls.
Next step: `parse` builds objects from the values and makes the checks across objects.
"""

from collections.abc import Mapping

from penstock.core.manifest.convert import check_size, convert
from penstock.core.manifest.problems import Problem, Report, describe, did_you_mean
from penstock.core.manifest.rows import Field, Kind

__all__ = ["Field", "Kind", "Problem", "Report", "Values", "known_fields", "read_fields"]


class Values:
    """Read values of one OBJECT by field name. Accessors assert what the table promises."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values

    def __contains__(self, name: str) -> bool:
        """Whether there is a row of this name."""
        return name in self._values

    def given(self, name: str) -> bool:
        """Whether the field has a value, which may be empty."""
        return self._values[name] is not None

    def integer(self, name: str) -> int:
        value = self._values[name]
        assert isinstance(value, int)
        return value

    def optional_integer(self, name: str) -> int | None:
        value = self._values[name]
        assert value is None or isinstance(value, int)
        return value

    def boolean(self, name: str) -> bool:
        value = self._values[name]
        assert isinstance(value, bool)
        return value

    def flag(self, name: str) -> bool:
        """Of a field without a default: absent is false."""
        return self._values[name] is True

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

    def mappings(self, name: str) -> tuple[Mapping[str, object], ...]:
        """The list of mappings as they were written; empty if absent."""
        value = self._values[name] or ()
        assert isinstance(value, tuple)
        return value

    def settings(self, name: str) -> dict[str, str]:
        """The mapping; empty if absent. Numbers have become the text Kafka would use."""
        value = self._values[name] or {}
        assert isinstance(value, dict)
        return value

    def nested(self, name: str) -> "Values":
        value = self._values[name]
        assert isinstance(value, Values)
        return value

    def objects(self, name: str) -> "tuple[Values, ...] | None":
        """The fields of each of the OBJECTS; None if absent."""
        value = self._values[name]
        assert value is None or isinstance(value, tuple)
        return value

    def optional(self, name: str) -> "Values | None":
        """The fields of an OBJECT that may be absent."""
        value = self._values[name]
        assert value is None or isinstance(value, Values)
        return value


def read_fields(rows: tuple[Field, ...], given: object, path: str, report: Report) -> Values:
    """Checks a mapping against its rows. `given` None counts as an empty mapping.

    Returns a value for every row; wrong ones are in `report` and have their defaults here.
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


def known_fields(rows: tuple[Field, ...], given: Mapping[str, object]) -> dict[str, object]:
    """The same mapping, as it was written, without fields that have no row, at any depth."""
    return {row.name: _known(row, given[row.name]) for row in rows if row.name in given}


def _known(row: Field, value: object) -> object:
    if row.kind is Kind.OBJECT and isinstance(value, Mapping):
        return known_fields(row.fields, value)
    if row.kind is Kind.OBJECTS and isinstance(value, list):
        return [
            known_fields(row.fields, each) if isinstance(each, Mapping) else each for each in value
        ]
    return value


def _read(row: Field, given: Mapping[object, object], path: str, report: Report) -> object:
    here = _join(path, row.name)
    value = given.get(row.name)
    if row.kind is Kind.OBJECT:
        if value is None and row.optional:
            return None
        return read_fields(row.fields, value, here, report)
    if value is None:
        if row.required:
            report.add(here, f"is missing; it must be {row.kind.value}: {row.doc}")
        return row.default
    before = len(report.problems)
    if row.kind is Kind.OBJECTS:
        read: object = _read_objects(row, value, here, report)
    else:
        read = convert(row, value, here, report)
    return read if len(report.problems) == before else row.default


def _read_objects(row: Field, given: object, here: str, report: Report) -> tuple[Values, ...]:
    if not isinstance(given, list):
        report.add(here, f"is {describe(given)}; it must be {row.kind.value}")
        return ()
    check_size(row, given, here, report)
    return tuple(
        read_fields(row.fields, entry, f"{here}[{number}]", report)
        for number, entry in enumerate(given)
    )


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
