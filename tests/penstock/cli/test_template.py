"""What consume prints per record."""

import json

import pytest

from penstock.cli.template import Template, to_json_line
from penstock.client.model import Record
from penstock.errors import MisuseError

RECORD = Record(
    topic="flights",
    partition=3,
    offset=42,
    timestamp_ms=1_370_000_000_000,
    key=b"AA",
    value=b"on time",
    headers=(("source", b"bts"), ("empty", None)),
)
NULLS = Record("t", 0, 0, 0, None, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%k=%v", b"AA=on time"),
        ("%t/%p@%o %T", b"flights/3@42 1370000000000"),
        ("%h", b"source=bts,empty="),
        ("%K %S%n", b"2 7\n"),
        ("%s%%", b"on time%"),
        ("a\\tb\\n\\0\\\\", b"a\tb\n\0\\"),
        ("ü", "ü".encode()),
        ("", b""),
    ],
)
def test_a_format_is_filled_with_the_record(text: str, expected: bytes) -> None:
    assert Template(text).render(RECORD) == expected


def test_null_is_printed_as_asked() -> None:
    assert Template("%k:%v %K %S", b"NULL").render(NULLS) == b"NULL:NULL -1 -1"
    assert Template("[%k:%v]").render(NULLS) == b"[:]"


@pytest.mark.parametrize(
    ("text", "sequence"), [("%v %x", "'%x'"), ("%", "'%'"), ("\\q", "'\\\\q'")]
)
def test_an_unknown_sequence_is_refused_before_anything_is_read(text: str, sequence: str) -> None:
    with pytest.raises(MisuseError, match="at position") as caught:
        Template(text)
    assert sequence in caught.value.message


def test_json_keeps_everything() -> None:
    assert json.loads(to_json_line(RECORD)) == {
        "topic": "flights",
        "partition": 3,
        "offset": 42,
        "timestamp_ms": 1_370_000_000_000,
        "key": "AA",
        "value": "on time",
        "headers": [{"name": "source", "value": "bts"}, {"name": "empty", "value": None}],
    }


def test_json_shows_bytes_that_are_no_text_in_base64() -> None:
    document = json.loads(to_json_line(NULLS._replace(value=b"\xff\x00")))
    assert document["value_base64"] == "/wA="
    assert document["key"] is None
    assert "value" not in document
