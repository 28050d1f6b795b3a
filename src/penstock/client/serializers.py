"""From the user's objects to bytes.

A serializer is anything callable with (topic, value); the ready-made ones refuse what they
cannot turn into bytes with one MisuseError that names topic and type. None always stays None:
a null value is a tombstone, not the text "null".
"""

import json
from typing import Any, Protocol

from penstock.errors import MisuseError


class Serializer(Protocol):
    """Turns a key or value into bytes. Called once per record, on the sending thread."""

    def __call__(self, topic: str, value: Any, /) -> bytes | None:
        """Returns the bytes, or None for a null. Raises MisuseError if it cannot."""


def refuse(topic: str, value: object, expected: str) -> MisuseError:
    """The error for a value of the wrong type."""
    return MisuseError(
        f"topic {topic!r}: cannot send a {type(value).__name__}, expected {expected}; "
        "convert it, or give the producer a serializer"
    )


class BytesSerializer:
    """Passes bytes-like objects unchanged, as producers do without a serializer."""

    def __call__(self, topic: str, value: Any, /) -> bytes | None:
        if value is None or type(value) is bytes:
            return value
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        raise refuse(topic, value, "bytes or None")


class StringSerializer:
    """Text as UTF-8 (or another encoding)."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self._encoding = encoding

    def __call__(self, topic: str, value: Any, /) -> bytes | None:
        if value is None:
            return None
        if not isinstance(value, str):
            raise refuse(topic, value, "str or None")
        return value.encode(self._encoding)


class JsonSerializer:
    """Compact JSON in UTF-8, keys in the order given."""

    def __call__(self, topic: str, value: Any, /) -> bytes | None:
        if value is None:
            return None
        try:
            text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise MisuseError(f"topic {topic!r}: value is not JSON: {error}") from error
        return text.encode()


class ProtobufSerializer:
    """A protobuf message in its deterministic serialization, so that equal keys hash equally."""

    def __call__(self, topic: str, value: Any, /) -> bytes | None:
        if value is None:
            return None
        serialize = getattr(value, "SerializeToString", None)
        if serialize is None:
            raise refuse(topic, value, "a protobuf message or None")
        return bytes(serialize(deterministic=True))
