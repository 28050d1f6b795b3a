r"""What `penstock consume` prints per record: format strings, JSON lines, and null marks. Pure.

    %k key   %v value (also %s)   %o offset   %p partition   %t topic   %T timestamp in ms
    %h headers as name=value,…    %K %S sizes of key and value (-1: null)   %n newline   %% %
    \n \t \r \0 \\ as in C

Keys and values are bytes and stay bytes. A format is parsed once into parts; a mistake in it is
found before the first record is read.
"""

import base64
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.cli.usage import WrongUsageError

if TYPE_CHECKING:
    from penstock.client import Record

Part = Callable[["Record"], bytes]

_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


class Template:
    """A parsed format. `null` stands where a key or value is null.

    Raises WrongUsageError for an unknown % or \\ sequence, naming its position.
    """

    def __init__(self, text: str, null: bytes = b"") -> None:
        self._null = null
        self._parts = list(self._parse(text))

    def render(self, record: "Record") -> bytes:
        return b"".join(part(record) for part in self._parts)

    def _parse(self, text: str) -> list[Part]:
        parts: list[Part] = []
        literal = b""
        position = 0
        while position < len(text):
            mark = text[position]
            if mark not in "%\\":
                literal += mark.encode()
                position += 1
                continue
            sequence = text[position : position + 2]
            fixed = self._fixed(sequence)
            if fixed is not None:
                literal += fixed
            else:
                parts += [_literal(literal), self._field(sequence, position)]
                literal = b""
            position += 2
        return [*parts, _literal(literal)]

    def _fixed(self, sequence: str) -> bytes | None:
        if sequence == "%%":
            return b"%"
        if sequence == "%n":
            return b"\n"
        return _ESCAPES.get(sequence[1:]) if sequence.startswith("\\") else None

    def _field(self, sequence: str, position: int) -> Part:
        null = self._null
        fields: dict[str, Part] = {
            "%k": lambda r: null if r.key is None else r.key,
            "%v": lambda r: null if r.value is None else r.value,
            "%s": lambda r: null if r.value is None else r.value,
            "%o": lambda r: b"%d" % r.offset,
            "%p": lambda r: b"%d" % r.partition,
            "%t": lambda r: r.topic.encode(),
            "%T": lambda r: b"%d" % r.timestamp_ms,
            "%h": lambda r: b",".join(_header(*header) for header in r.headers),
            "%K": lambda r: b"%d" % (-1 if r.key is None else len(r.key)),
            "%S": lambda r: b"%d" % (-1 if r.value is None else len(r.value)),
        }
        if sequence not in fields:
            raise WrongUsageError(
                f"--format has {sequence!r} at position {position}; known are "
                f"{' '.join(fields)} %n %% \\n \\t \\r \\0 \\\\"
            )
        return fields[sequence]


def _literal(text: bytes) -> Part:
    return lambda _: text


def _header(name: str, value: bytes | None) -> bytes:
    return name.encode() + b"=" + (value or b"")


def to_json_line(record: "Record") -> bytes:
    """One record as JSON with a newline. Bytes that are not UTF-8 stand in `…_base64` instead."""
    document: dict[str, object] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
    }
    document.update(_text_or_base64("key", record.key))
    document.update(_text_or_base64("value", record.value))
    if record.headers:
        document["headers"] = [
            {"name": name, **_text_or_base64("value", value)} for name, value in record.headers
        ]
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"


def _text_or_base64(name: str, data: bytes | None) -> dict[str, object]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
