"""The common part of the internal topics' records: compact JSON.

The same state must be the same bytes, so there is one encoder. What a broker cannot read is
corruption; the error says which topic, what was seen, and what is not served because of it.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import ClusterError, ErrorCode

encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
quote: Final = json.encoder.encode_basestring
"""A string as `encode` writes it."""
_SHOWN_BYTES: Final = 80


@dataclass(frozen=True, slots=True)
class Format:
    """The records of one internal topic: its name for people, and the effect of a bad one."""

    topic: str
    harm: str

    def decode(self, data: bytes | None, kind: type[Any]) -> Any:
        """A JSON document of this kind. Raises ClusterError(DATA_CORRUPTED)."""
        try:
            document = json.loads(data or b"")
        except ValueError as error:
            raise self.corrupt(data, error) from error
        if not isinstance(document, kind):
            raise self.corrupt(data, f"a JSON {kind.__name__} is expected")
        return document

    def corrupt(self, seen: bytes | None, why: object) -> ClusterError:
        """The error for a record that no broker has written."""
        return ClusterError(
            f"a record of the {self.topic} topic is not in this broker's format: "
            f"{(seen or b'')[:_SHOWN_BYTES]!r} ({why}); {self.harm}",
            ErrorCode.DATA_CORRUPTED,
        )


def as_text(value: object) -> str:
    """`value`, which must be text. Raises TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value
