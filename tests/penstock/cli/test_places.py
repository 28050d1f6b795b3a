"""Places in a log as users write them."""

import pytest

from penstock.cli.options import parse_pairs
from penstock.cli.places import Place, PlaceKind, parse_place, parse_time_ms
from penstock.cli.produce import LineFormat
from penstock.errors import MisuseError


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("beginning", Place(PlaceKind.BEGINNING)),
        ("end", Place(PlaceKind.END)),
        ("0", Place(PlaceKind.OFFSET, 0)),
        ("1234", Place(PlaceKind.OFFSET, 1234)),
        ("-10", Place(PlaceKind.BEFORE_END, 10)),
        ("@1370000000000", Place(PlaceKind.TIME, 1_370_000_000_000)),
        ("@1970-01-01T00:00:01", Place(PlaceKind.TIME, 1_000)),
        ("@1970-01-01T02:00:00+02:00", Place(PlaceKind.TIME, 0)),
        ("@1970-01-02", Place(PlaceKind.TIME, 86_400_000)),
    ],
)
def test_places_that_can_be_written(text: str, place: Place) -> None:
    assert parse_place(text, "--offset") == place


@pytest.mark.parametrize(
    "text", ["", "begin", "--1", "1.5", "9" * 30, "@", "@yesterday", "@1969-12-31T23:59", "١"]
)
def test_other_places_are_refused_with_what_can_be_written(text: str) -> None:
    with pytest.raises(MisuseError, match=r"--offset (is|has)"):
        parse_place(text, "--offset")


def test_a_time_without_zone_is_utc() -> None:
    assert parse_time_ms("2013-06-01T12:00", "--at") == 1_370_088_000_000


@pytest.mark.parametrize(
    ("form", "line", "expected"),
    [
        (LineFormat(None, None, None), b"a:b", (None, b"a:b")),
        (LineFormat(b":", None, None), b"a:b:c", (b"a", b"b:c")),
        (LineFormat(b":", None, None), b"abc", (None, b"abc")),
        (LineFormat(b":", None, None), b":abc", (b"", b"abc")),
        (LineFormat(b":", b"k", None), b"abc", (b"k", b"abc")),
        (LineFormat(b"::", None, b"NULL"), b"NULL::NULL", (None, None)),
        (LineFormat(None, None, b""), b"", (None, None)),
        (LineFormat(None, None, None), b"", (None, b"")),
    ],
)
def test_a_line_becomes_key_and_value(
    form: LineFormat, line: bytes, expected: tuple[bytes | None, bytes | None]
) -> None:
    assert form.split(line) == expected


def test_pairs_are_split_at_the_first_equals_sign() -> None:
    assert parse_pairs(["a=b=c", "d="], "--config") == {"a": "b=c", "d": ""}


@pytest.mark.parametrize(
    ("texts", "message"), [(["a"], "KEY=VALUE"), (["=b"], "KEY=VALUE"), (["a=1", "a=2"], "twice")]
)
def test_bad_pairs_are_refused(texts: list[str], message: str) -> None:
    with pytest.raises(MisuseError, match=message):
        parse_pairs(texts, "--config")
