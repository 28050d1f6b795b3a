"""Records as people read them: which ones are wanted, and their bytes as text. Pure.

    Wanted ──(the reader fetches)──▶ Record ──matches?──▶ RecordView

Bytes are never interpreted: JSON is parsed only to be indented, text is shown as text, and all else
is base64. What is longer than `SHOWN_BYTES` is cut, and says so; its page offers the whole value as
a file.
"""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlencode

from penstock.errors import ErrorCode, MisuseError
from penstock.views import cells
from penstock.views.cells import Cell
from penstock.views.topics import topic_href

if TYPE_CHECKING:
    from penstock.client import Record

Form = Literal["auto", "json", "text", "base64"]
FORMS: Final[tuple[Form, ...]] = ("auto", "json", "text", "base64")
COUNTS: Final = (20, 50, 100, 200)
COUNT_DEFAULT: Final = 50
FILTER_CHARS_MAX: Final = 1_000
SHOWN_BYTES: Final = 2_048
"""Of one value in a list: a screen's worth."""
DETAIL_BYTES: Final = 64 * 1024
"""Of one value on its own page."""
HEADERS_SHOWN: Final = 20
HEADERS_DETAIL: Final = 500
"""Of a record in a list, and on its own page."""
LINE_BYTES: Final = 160
LIST_CHARS: Final = 60
DEPTH_MAX: Final = 30
"""Of JSON; what is nested more is shown as it is."""
JSON_BYTES_MAX: Final = 256 * 1024
"""Larger documents are shown as they are: indenting them would not make them readable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which records of a topic.

    Attributes:
        partition: None = all.
        since_ms: From this moment on; None = the last ones.
        key: Only records whose key is exactly this text; "" = any.
        text: Only records that have this text in the key or the value; "" = any.
        count: At most this many.
        form: How bytes are shown.
    """

    partition: int | None = None
    since_ms: int | None = None
    key: str = ""
    text: str = ""
    count: int = COUNT_DEFAULT
    form: Form = "auto"

    @property
    def is_filtered(self) -> bool:
        return bool(self.key or self.text)

    def matches(self, record: "Record") -> bool:
        if self.key and record.key != self.key.encode():
            return False
        sought = self.text.encode()
        return not sought or sought in (record.value or b"") or sought in (record.key or b"")


def parse_wanted(given: dict[str, str], since_ms: int | None) -> Wanted:
    """From a form's fields. Raises MisuseError that names the field, the value and what is
    possible."""
    partition, count = given.get("partition", ""), given.get("count", "") or str(COUNT_DEFAULT)
    if partition and not _is_number(partition):
        raise _wrong("partition", partition, "a number, or empty for all")
    if not _is_number(count) or int(count) not in COUNTS:
        raise _wrong("count", count, "one of " + ", ".join(map(str, COUNTS)))
    form = next((one for one in FORMS if one == given.get("form", "auto")), None)
    if form is None:
        raise _wrong("form", given["form"], "one of " + ", ".join(FORMS))
    for name in ("key", "text"):
        if len(given.get(name, "")) > FILTER_CHARS_MAX:
            raise MisuseError(
                f"{name} has {len(given[name]):,} characters; the limit is {FILTER_CHARS_MAX:,}",
                ErrorCode.INVALID_REQUEST,
            )
    return Wanted(
        partition=int(partition) if partition else None,
        since_ms=since_ms,
        key=given.get("key", ""),
        text=given.get("text", ""),
        count=int(count),
        form=form,
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _wrong(name: str, seen: str, possible: str) -> MisuseError:
    return MisuseError(f"{name} is {seen[:40]!r}; it must be {possible}", ErrorCode.INVALID_REQUEST)


@dataclass(frozen=True, slots=True)
class Shown:
    """Bytes as text. `label`: which form was used, and how long the whole is; `cut`: not all is
    shown. A null is not an empty value."""

    text: str
    label: str
    cut: bool = False
    is_null: bool = False


@dataclass(frozen=True, slots=True)
class RecordView:
    """One record on a page."""

    partition: int
    offset: int
    moment: Cell
    key: Shown
    value: Shown
    headers: tuple[tuple[str, Shown], ...]
    href: str
    more_headers: int = 0
    """How many are not shown."""


def record_view(
    record: "Record", form: Form, limit: int = SHOWN_BYTES, *, compact: bool = True
) -> RecordView:
    """`limit`: bytes of key and value that are shown. `compact`: as in a list, where short JSON
    stays on its line, and headers are cut to a line."""
    headers = record.headers[: HEADERS_SHOWN if compact else HEADERS_DETAIL]
    page = f"records/{record.partition}/{record.offset}"
    query = "" if form == "auto" else "?" + urlencode({"form": form})
    return RecordView(
        record.partition,
        record.offset,
        cells.moment(record.timestamp_ms),
        show(record.key, form if form != "json" else "auto", limit),
        show(record.value, form, limit, compact=compact),
        tuple(
            (_cut(name), show(value, "auto", LINE_BYTES if compact else limit))
            for name, value in headers
        ),
        topic_href(record.topic, page) + query,
        len(record.headers) - len(headers),
    )


def _cut(name: str) -> str:
    return name if len(name) <= LINE_BYTES else f"{name[:LINE_BYTES]}…"


def show(data: bytes | None, form: Form, limit: int, *, compact: bool = False) -> Shown:
    """Bytes in the wanted form, or in the next one that is possible: JSON, text, base64."""
    if data is None:
        return Shown("null", "null", is_null=True)
    length = cells.bytes_text(len(data))
    if form in ("auto", "json"):
        pretty = _as_json(data, limit, only_documents=form == "auto")
        if pretty is not None and compact and len(data) <= LINE_BYTES and b"\n" not in data.strip():
            pretty = data.decode().strip()
        if pretty is not None:
            return Shown(pretty[:limit], f"JSON, {length}", len(pretty) > limit)
    if form != "base64":
        text = _as_text(data[:limit], whole=len(data) <= limit, force=form == "text")
        if text is not None:
            return Shown(text, f"text, {length}", len(data) > limit)
    part = data[: limit // 4 * 3]
    return Shown(base64.b64encode(part).decode(), f"base64, {length}", len(part) < len(data))


def _as_json(data: bytes, limit: int, *, only_documents: bool) -> str | None:
    """Indented; no further than to the first character after `limit`, or a little more. Numbers
    keep their digits, because they are not converted."""
    if len(data) > JSON_BYTES_MAX:
        return None
    if only_documents and data.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        document = json.loads(data, parse_float=_Digits, parse_int=_Digits, parse_constant=_Digits)
        pieces, length = list[str](), 0
        for piece in _pieces(document, 0):
            pieces.append(piece)
            length += len(piece)
            if length > limit:
                break
    except (ValueError, RecursionError):
        return None
    # An escaped half of a surrogate pair has no UTF-8, and no page could be sent with it.
    return "".join(pieces).encode("utf-8", "backslashreplace").decode()


class _Digits(str):
    """A number of a document, digit by digit."""

    __slots__ = ()


def _pieces(value: object, depth: int) -> Iterator[str]:
    """As json.dumps would, and short lists of plain values on one line. Piece by piece, so that
    what is not shown costs nothing. Raises ValueError for what is nested too deeply to be read."""
    line = _line(value, LIST_CHARS) if isinstance(value, list) else _plain(value)
    if line is not None:
        yield line
        return
    if depth > DEPTH_MAX:
        raise ValueError(f"it is nested more than {DEPTH_MAX} times")
    assert isinstance(value, dict | list), "all else is plain"
    is_dict = isinstance(value, dict)
    before, end = "{}" if is_dict else "[]"
    for each in value:
        name = f"{json.dumps(each, ensure_ascii=False)}: " if is_dict else ""
        yield f"{before}\n{'  ' * (depth + 1)}{name}"
        yield from _pieces(value[each] if is_dict else each, depth + 1)
        before = ","
    yield f"\n{'  ' * depth}{end}"


def _plain(value: object) -> str | None:
    """None if there is something in it."""
    if isinstance(value, _Digits):
        return str(value)
    if isinstance(value, dict | list) and value:
        return None
    return json.dumps(value, ensure_ascii=False)


def _line(values: list[object], room: int) -> str | None:
    """A list on one line; None unless its parts have fewer characters than `room`."""
    parts = []
    for each in values:
        if room <= 0 or (isinstance(each, str) and len(each) >= room):
            return None
        part = _line(each, room - len("[]")) if isinstance(each, list) and each else _plain(each)
        if part is None or len(part) >= room:
            return None
        room -= len(part)
        parts.append(part)
    return f"[{', '.join(parts)}]"


def _as_text(data: bytes, *, whole: bool, force: bool) -> str | None:
    """None if it is not text; a character that the cut divides is left out."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if not whole and error.start >= len(data) - 3:
            text = data[: error.start].decode()
        elif force:
            text = data.decode(errors="replace")
        else:
            return None
    if not force and any(not one.isprintable() and one not in "\t\r\n" for one in text):
        return None
    return text


@dataclass(frozen=True, slots=True)
class Page:
    """The records found, the newest first, and how far the search went.

    Attributes:
        scanned: How many records were looked at.
        stopped: Why it ended before all were looked at; "" = it did not.
        skipped: Partitions that could not be read, with the reason.
    """

    records: tuple[RecordView, ...]
    scanned: int
    stopped: str = ""
    skipped: tuple[str, ...] = ()


def page_note(page: Page, wanted: Wanted) -> str:
    """One line below the records."""
    found = cells.plural(len(page.records), "record")
    looked = f"{found} of {page.scanned:,} looked at" if wanted.is_filtered else found
    return looked + (f"; stopped: {page.stopped}" if page.stopped else "")


def empty_note(page: Page, wanted: Wanted, topic: str) -> str:
    """What to do if there are none."""
    if page.skipped and not page.scanned:
        return "No record could be read; see above."
    if wanted.is_filtered:
        none = f"None of the {page.scanned:,} records looked at matches."
        if wanted.since_ms is None:
            return f"{none} Give a time to look further back." if page.stopped else none
        if page.stopped:
            return f"{none} Give a later time to look further on."
        return f"{none} Give an earlier time to look further back."
    if page.stopped:
        return f"No record was found: {page.stopped}. Give a time to look elsewhere."
    if wanted.since_ms is not None:
        return "No record is that recent. Leave the time empty for the last ones."
    return f"There are no records to read. To write some: echo hello | penstock produce {topic}"
