r"""Which records `penstock consume` prints, of which topics, and what ends a record. Mostly pure.

    topics, or --regex ─▶ names      --key, --grep ─▶ a test of a record      -D ─▶ bytes

A record that is left out counts neither for --count nor as an error; a group commits it with those
that are printed.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.cli.usage import WrongUsageError
from penstock.errors import ErrorCode, MisuseError

if TYPE_CHECKING:
    from penstock.client import Admin, Record

_ESCAPE: Final = re.compile(r"\\(x[0-9A-Fa-f]{2}|.)?", re.DOTALL)
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


Rendering: TypeAlias = "Callable[[Iterable[Record]], Iterator[bytes]]"


@dataclass(frozen=True, slots=True)
class Filter:
    """What a record must be. `key`: exactly this one. `text`: somewhere in the value, which is
    read as UTF-8."""

    key: bytes | None = None
    text: re.Pattern[str] | None = None

    def matches(self, record: "Record") -> bool:
        if self.key is not None and record.key != self.key:
            return False
        if self.text is None:
            return True
        # What is not UTF-8 becomes what Python makes of such an argument.
        value = record.value
        return value is not None and bool(self.text.search(value.decode(errors="surrogateescape")))


def make_filter(key: str | None, grep: str | None) -> Filter:
    """Raises WrongUsageError for a pattern that is none."""
    text = None if grep is None else _pattern(grep, "--grep")
    return Filter(None if key is None else key.encode(), text)


def choose_topics(admin: "Admin", given: Sequence[str], *, regex: bool) -> list[str]:
    """Names of topics; with `regex`, of those that a pattern matches as a whole.

    Raises MisuseError if there is none.
    """
    if not regex:
        return list(dict.fromkeys(given))
    patterns = [_pattern(text, "TOPIC") for text in given]
    found = [
        name for name in sorted(admin.list_topics()) if any(one.fullmatch(name) for one in patterns)
    ]
    if not found:
        raise MisuseError(
            f"no topic has a name that {' or '.join(given)} matches; see `penstock topic list`",
            ErrorCode.UNKNOWN_TOPIC,
        )
    return found


def parse_delimiter(text: str | None, option: str = "--delimiter") -> bytes:
    r"""What ends a record, or a key; \n \t \r \0 \\ \xNN as in C. None: a newline.

    Raises WrongUsageError.
    """
    if text is None:
        return b"\n"
    if not text:
        raise WrongUsageError(
            rf"{option} is empty; it must be at least one character, such as ; or \0"
        )
    parts, end = [], 0
    for found in _ESCAPE.finditer(text):
        parts += [text[end : found.start()].encode(), _escaped(text, found[1], option)]
        end = found.end()
    return b"".join([*parts, text[end:].encode()])


def rendering(render: "Callable[[Record], bytes]", wanted: Filter) -> "Rendering":
    """Of some records, those that are wanted, as they are printed."""

    def chosen(records: "Iterable[Record]") -> Iterator[bytes]:
        return (render(record) for record in records if wanted.matches(record))

    return chosen


def parse_key_delimiter(text: str | None) -> bytes | None:
    """What stands between key and value; None: nothing does. Raises WrongUsageError."""
    return None if text is None else parse_delimiter(text, "--key-delimiter")


def _escaped(text: str, sequence: str | None, option: str) -> bytes:
    if sequence is not None and len(sequence) == 3:
        return bytes.fromhex(sequence[1:])
    if sequence not in _ESCAPES:
        raise WrongUsageError(
            f"{option} is {text!r}, and \\{sequence or ''} means nothing; known are "
            r"\n \t \r \0 \\ \xNN"
        )
    return _ESCAPES[sequence]


def _pattern(text: str, option: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise WrongUsageError(
            f"{option} is {text!r}, which is no regular expression: {error}"
        ) from None
