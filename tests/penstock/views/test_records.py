"""Bytes as people read them: JSON, text, base64; what is cut; what matches."""

import base64
import json
from typing import Any

import pytest

from penstock.client import Record
from penstock.errors import MisuseError
from penstock.views.records import (
    Form,
    Page,
    Wanted,
    empty_note,
    parse_wanted,
    record_view,
    show,
)


@pytest.mark.parametrize(
    ("data", "form", "text", "label"),
    [
        (b'{"a":1}', "auto", '{\n  "a": 1\n}', "JSON, 7 B"),
        (b'{"n":1e999,"d":0.10,"i":123456789012345678901}', "auto",
         '{\n  "n": 1e999,\n  "d": 0.10,\n  "i": 123456789012345678901\n}', "JSON, 46 B"),
        (b'{"a":{},"b":[],"c":[1,"x",null,true]}', "auto",
         '{\n  "a": {},\n  "b": [],\n  "c": [1, "x", null, true]\n}', "JSON, 37 B"),
        (b"12", "auto", "12", "text, 2 B"),
        (b"12", "json", "12", "JSON, 2 B"),
        (b"", "auto", "", "text, 0 B"),
        ("süß\n".encode(), "auto", "süß\n", "text, 6 B"),
        (b"\x00\x01", "auto", "AAE=", "base64, 2 B"),
        (b"\x1b[31m", "auto", "G1szMW0=", "base64, 5 B"),
        (b"\xff\xfe", "text", "\ufffd\ufffd", "text, 2 B"),
        (b'{"a":1}', "text", '{"a":1}', "text, 7 B"),
        (b'{"a":1}', "base64", "eyJhIjoxfQ==", "base64, 7 B"),
        (b"{not json", "json", "{not json", "text, 9 B"),
        (b"[" * 5_000, "auto", "[" * 1_000, "text, 4.9 KiB"),
    ],
)  # fmt: skip
def test_bytes_are_shown(data: bytes, form: Form, text: str, label: str) -> None:
    seen = show(data, form, 1_000)
    assert (seen.text, seen.label) == (text, label)


def test_null_is_not_empty() -> None:
    assert show(None, "auto", 10).is_null
    assert not show(b"", "auto", 10).is_null


def test_what_is_long_is_cut_between_characters() -> None:
    seen = show("ä".encode() * 100, "auto", 51)
    assert seen.text == "ä" * 25
    assert seen.cut
    seen = show(bytes(1_000_000), "auto", 100)
    assert base64.b64decode(seen.text) == bytes(75)
    assert seen.cut
    assert not show(b"x" * 10, "auto", 10).cut


def test_short_json_keeps_its_line_in_a_list() -> None:
    assert show(b'{"a": 1}', "auto", 100, compact=True).text == '{"a": 1}'
    assert show(b'{"a":\n1}', "auto", 100, compact=True).text == '{\n  "a": 1\n}'


def record(**fields: Any) -> Record:
    return Record(**{"topic": "t", "partition": 1, "offset": 2, "timestamp_ms": 3,
                     "key": b"k", "value": b"hello", **fields})  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "fields", "is_match"),
    [
        (Wanted(), {}, True),
        (Wanted(key="k"), {}, True),
        (Wanted(key="K"), {}, False),
        (Wanted(key="k"), {"key": None}, False),
        (Wanted(text="ell"), {}, True),
        (Wanted(text="k"), {}, True),
        (Wanted(text="x"), {"value": None}, False),
        (Wanted(key="k", text="none"), {}, False),
    ],
)
def test_records_match(wanted: Wanted, fields: dict[str, Any], is_match: bool) -> None:
    assert wanted.matches(record(**fields)) is is_match


def test_a_record_has_a_page() -> None:
    assert record_view(record(), "auto").href == "/topics/t/records/1/2"
    assert record_view(record(), "text").href == "/topics/t/records/1/2?form=text"


def test_a_form_is_parsed_or_its_field_is_named() -> None:
    assert parse_wanted({"partition": "3", "count": "20", "form": "json"}, 5) == Wanted(
        partition=3, since_ms=5, count=20, form="json"
    )
    for given, name in (
        ({"partition": "-1"}, "partition"),
        ({"partition": "٣"}, "partition"),
        ({"count": "21"}, "count"),
        ({"form": "xml"}, "form"),
        ({"key": "k" * 1_001}, "key"),
    ):
        with pytest.raises(MisuseError, match=name):
            parse_wanted(given, None)


def test_json_nested_too_deeply_to_be_read_is_shown_as_it_is() -> None:
    deep = b"[" * 400 + b",".join([b"1"] * 32_768) + b"]" * 400
    seen = show(deep, "auto", 2_048)
    assert (seen.text, seen.label) == (deep[:2_048].decode(), "text, 64.8 KiB")
    readable = b'{"a":' * 30 + b"{}" + b"}" * 30
    assert show(readable, "auto", 10_000).label.startswith("JSON")


def test_what_is_not_shown_of_a_document_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    written = 0
    dumps = json.dumps

    def count(value: object, **options: Any) -> str:
        nonlocal written
        written += 1
        return dumps(value, **options)

    monkeypatch.setattr(json, "dumps", count)
    seen = show(b"[[" + b",".join([b'"x"'] * 50_000) + b"]]", "auto", 1_000)
    assert (len(seen.text), seen.cut) == (1_000, True)
    assert written < 1_000


def test_lists_are_on_one_line_if_they_are_short() -> None:
    assert show(b'{"a":[[1,[2]],"b"]}', "auto", 100).text == '{\n  "a": [[1, [2]], "b"]\n}'
    long = json.dumps([["x" * 28], ["y" * 28]]).encode()
    assert show(long, "auto", 200).text.count("\n") == 3


def test_a_search_that_was_ended_does_not_say_that_there_are_no_records() -> None:
    assert "There are no records to read" in empty_note(Page((), 0), Wanted(), "t")
    ended = Page((), 0, "the last 20,000 offsets of each partition were looked at")
    for wanted in (Wanted(), Wanted(since_ms=1)):
        told = empty_note(ended, wanted, "t")
        assert told.startswith("No record was found: the last 20,000 offsets of each partition")
