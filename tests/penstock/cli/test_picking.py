"""Which records are printed, of which topics, and what ends a record; what is read, cut up."""

import os
import re
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.cli.input_records import split
from penstock.cli.picking import choose_topics, make_filter, parse_delimiter
from penstock.client import Record
from penstock.errors import MisuseError


class Names:
    """An admin client that knows topics."""

    def list_topics(self) -> list[str]:
        return ["flights-us", "flights-de", "old-flights-de"]


def choose(*given: str, regex: bool) -> list[str]:
    return choose_topics(cast("Any", Names()), given, regex=regex)


def test_names_are_taken_as_they_are_each_once() -> None:
    assert choose("b", "a", "b", regex=False) == ["b", "a"]


def test_a_pattern_matches_whole_names() -> None:
    assert choose("flights-.*", regex=True) == ["flights-de", "flights-us"]
    assert choose(".*-de", "flights-us", regex=True) == [
        "flights-de", "flights-us", "old-flights-de",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "said"),
    [("flights", "no topic has a name that flights matches"), ("[", "is no regular expression")],
)
def test_a_pattern_that_means_nothing_is_refused(given: str, said: str) -> None:
    with pytest.raises(MisuseError, match=re.escape(said)):
        choose(given, regex=True)


def record(key: bytes | None, value: bytes | None) -> Record:
    return Record("t", 0, 0, 0, key, value, ())


@pytest.mark.parametrize(
    ("key", "grep", "matching"),
    [
        (None, None, [0, 1, 2, 3]),
        ("AA", None, [0, 1]),
        ("", None, []),
        (None, "late", [0, 2]),
        (None, "^late", [2]),
        ("AA", "late|on time", [0, 1]),
        ("UA", "on time", []),
    ],
)
def test_records_by_key_and_text(key: str | None, grep: str | None, matching: list[int]) -> None:
    records = [
        record(b"AA", b"too late"),
        record(b"AA", b"on time \xff"),
        record(b"UA", b"late"),
        record(None, None),
    ]
    wanted = make_filter(key, grep)
    assert [i for i, one in enumerate(records) if wanted.matches(one)] == matching


@pytest.mark.parametrize(
    ("grep", "matching"),
    [
        (r"\u00e9", ["café"]),
        ("(?u)x", ["x"]),
        ("[äö]", []),
        ("(?i)É", ["café"]),
        ("^.$", ["ü", "x", b"\xff"]),
        (os.fsdecode(b"\xff"), [b"\xff"]),
    ],
)
def test_a_pattern_means_characters_not_bytes(grep: str, matching: list[str | bytes]) -> None:
    values: list[str | bytes] = ["café", "ü", "x", b"\xff"]
    wanted = make_filter(None, grep)
    found = [
        one
        for one in values
        if wanted.matches(record(None, one if isinstance(one, bytes) else one.encode()))
    ]
    assert found == matching


@pytest.mark.parametrize(
    ("text", "delimiter"),
    [
        (None, b"\n"),
        (";", b";"),
        (r"\0", b"\0"),
        (r"\t|\n", b"\t|\n"),
        (r"\x1e", b"\x1e"),
        ("ä", "ä".encode()),
        (r"\\", b"\\"),
    ],
)
def test_delimiters_have_escapes(text: str | None, delimiter: bytes) -> None:
    assert parse_delimiter(text) == delimiter


@pytest.mark.parametrize("text", ["", r"\q", "\\", r"\x1"])
def test_a_delimiter_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(MisuseError, match="--delimiter"):
        parse_delimiter(text)


@pytest.mark.parametrize(
    ("data", "delimiter", "records"),
    [
        (b"a\nb\n", b"\n", [b"a", b"b"]),
        (b"a\nb", b"\n", [b"a", b"b"]),
        (b"", b";", []),
        (b"a;b;", b";", [b"a", b"b"]),
        (b"a;;b", b";", [b"a", b"", b"b"]),
        (b"a--b-c--", b"--", [b"a", b"b-c"]),
        (b"one\ntwo", b"\0", [b"one\ntwo"]),
    ],
)
def test_input_is_cut_at_the_delimiter(data: bytes, delimiter: bytes, records: list[bytes]) -> None:
    assert list(through_a_pipe([data], delimiter)) == records


def test_a_delimiter_may_arrive_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = iter([b"a-", b"-b-", b"-c", b""])
    monkeypatch.setattr(os, "read", lambda *_: next(parts))
    with Path(os.devnull).open("rb") as source:
        assert list(split(source, b"--")) == [b"a", b"b", b"c"]


def test_a_record_larger_than_any_batch_ends_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "read", lambda *_: b"x" * (16 * 1024 * 1024))
    with (
        Path(os.devnull).open("rb") as source,
        pytest.raises(MisuseError, match="without the delimiter b';'"),
    ):
        list(split(source, b";"))


def test_a_line_larger_than_any_batch_ends_the_reading(tmp_path: Path) -> None:
    limit = 32 * 1024 * 1024
    lines = tmp_path / "lines"
    lines.write_bytes(b"x" * limit + b"\n" + b"y" * (3 * limit))
    with lines.open("rb") as source:
        records = split(source, b"\n")
        assert next(records) == b"x" * limit
        with pytest.raises(MisuseError, match=r"without the delimiter b'\\n'"):
            next(records)
        assert source.tell() < 2 * limit + 10, "the rest is not read into memory"


def through_a_pipe(parts: list[bytes], delimiter: bytes) -> list[bytes]:
    receiver, sender = os.pipe()
    with os.fdopen(receiver, "rb") as source:
        with os.fdopen(sender, "wb") as sink:
            sink.writelines(parts)
        return list(split(source, delimiter))
