"""Serializers turn what they know into bytes, leave null alone, and name what they refuse."""

from typing import Any

import pytest

from penstock.client import (
    BytesSerializer,
    JsonSerializer,
    ProtobufSerializer,
    Serializer,
    StringSerializer,
)
from penstock.errors import MisuseError
from penstock.proto.v1.broker_pb2 import BrokerInfo

ALL: list[Serializer] = [
    BytesSerializer(), StringSerializer(), JsonSerializer(), ProtobufSerializer(),
]  # fmt: skip


@pytest.mark.parametrize(
    ("serializer", "value", "expected"),
    [
        (BytesSerializer(), b"x", b"x"),
        (BytesSerializer(), bytearray(b"x"), b"x"),
        (BytesSerializer(), memoryview(b"xy")[1:], b"y"),
        (StringSerializer(), "Zürich", "Zürich".encode()),
        (StringSerializer("latin-1"), "ü", b"\xfc"),
        (JsonSerializer(), {"a": [1, None], "ü": "é"}, '{"a":[1,null],"ü":"é"}'.encode()),
        (ProtobufSerializer(), BrokerInfo(broker_id=1), b"\x08\x01"),
    ],
)
def test_a_value_becomes_bytes(serializer: Serializer, value: Any, expected: bytes) -> None:
    assert serializer("t", value) == expected


@pytest.mark.parametrize("serializer", ALL)
def test_null_stays_null(serializer: Serializer) -> None:
    assert serializer("t", None) is None


@pytest.mark.parametrize(
    ("serializer", "value"),
    [
        (BytesSerializer(), "text"),
        (StringSerializer(), b"bytes"),
        (JsonSerializer(), {1, 2}),
        (JsonSerializer(), float("nan")),
        (ProtobufSerializer(), {"broker_id": 1}),
    ],
)
def test_what_cannot_be_turned_into_bytes_is_refused_with_the_topic(
    serializer: Serializer, value: Any
) -> None:
    with pytest.raises(MisuseError, match="'orders'"):
        serializer("orders", value)
