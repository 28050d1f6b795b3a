"""Decoders make objects of bytes; what they cannot decode is named, and can be kept."""

import json
import sys
from io import BytesIO
from typing import Any, Final

import fastavro
import pytest
from google.protobuf.struct_pb2 import Struct

from penstock.client import (
    DecodeError,
    Record,
    avro_decoder,
    decode_records,
    json_decoder,
    protobuf_decoder,
    string_decoder,
)
from penstock.client.decoders import plain
from penstock.errors import ErrorCode, MisuseError, PenstockError
from penstock.proto.v1 import errors_pb2
from penstock.proto.v1.broker_pb2 import BrokerInfo, PartitionInfo, TopicInfo


def record(value: bytes | None, key: bytes | None = None, offset: int = 7) -> Record:
    return Record("orders", 3, offset, 1_000, key, value)


def decoded(data: bytes | None, **decoders: Any) -> Any:
    (found,) = decode_records([record(data)], **decoders)
    return found.value


def test_bytes_become_objects() -> None:
    assert decoded(b'{"a":[1,null,"\xc3\xbc"]}', value=json_decoder()) == {"a": [1, None, "ü"]}
    assert decoded("Zürich".encode(), value=string_decoder()) == "Zürich"
    assert decoded(b"\xfc", value=string_decoder("latin-1")) == "ü"
    assert decoded(b"\x08\x01", value=protobuf_decoder(BrokerInfo)) == BrokerInfo(broker_id=1)
    assert decoded(b"as they are") == b"as they are"


def test_a_null_stays_null_and_no_decoder_sees_it() -> None:
    def refuse(topic: str, data: bytes) -> Any:
        raise AssertionError((topic, data))

    assert decoded(None, value=refuse, key=refuse) is None


def test_a_decoded_record_has_what_the_record_has() -> None:
    raw = Record("t", 1, 2, 3, b"k", b"[4]", (("h", b"v"),))
    (found,) = decode_records([raw], key=string_decoder(), value=json_decoder())
    assert found == ("t", 1, 2, 3, "k", [4], (("h", b"v"),), None, raw)


@pytest.mark.parametrize(
    ("decoder", "data"),
    [
        (json_decoder(), b"{"),
        (json_decoder(), b"[" * 100_000),
        (string_decoder(), b"\xff"),
        (protobuf_decoder(BrokerInfo), b"\xff"),
    ],
)
def test_what_cannot_be_decoded_is_named_without_what_it_contains(
    decoder: Any, data: bytes
) -> None:
    taken = decode_records([record(data)], value=decoder)
    with pytest.raises(DecodeError) as seen:
        next(taken)
    assert str(seen.value).startswith("orders/3 offset 7: cannot decode the value (")
    assert "on_undecodable='keep'" in str(seen.value)
    assert seen.value.code is ErrorCode.INVALID_RECORD
    assert (seen.value.record, seen.value.part) == (record(data), "value")
    assert isinstance(seen.value, PenstockError)


def test_a_key_is_named_as_a_key() -> None:
    with pytest.raises(DecodeError, match="cannot decode the key") as seen:
        list(decode_records([record(b"{}", key=b"\xff")], key=string_decoder()))
    assert seen.value.part == "key"


def test_kept_records_have_their_bytes_and_the_error() -> None:
    records = [record(b"1", offset=1), record(b"no", b"k", offset=2), record(b"3", offset=3)]
    found = list(decode_records(records, value=json_decoder(), on_undecodable="keep"))
    assert [one.value for one in found] == [1, None, 3]
    assert [one.error is None for one in found] == [True, False, True]
    assert "orders/3 offset 2" in str(found[1].error)
    assert (found[1].key, found[1].raw) == (None, records[1])


def test_wrong_arguments_are_refused_before_a_record_is_taken() -> None:
    with pytest.raises(MisuseError, match="on_undecodable is 'skip'"):
        decode_records([], on_undecodable="skip")  # type: ignore[arg-type]  # no such policy
    with pytest.raises(MisuseError, match=r"value is 'json'.*json_decoder\(\)"):
        decode_records([], value="json")  # type: ignore[arg-type]  # no decoder
    with pytest.raises(MisuseError, match="protobuf_decoder needs a generated message class"):
        protobuf_decoder(dict)


def test_messages_become_plain_values_however_deep() -> None:
    topic = TopicInfo(topic="t", topic_id="id", partitions=[PartitionInfo(partition=1, isr=[2, 3])])
    topic.error.code = errors_pb2.ERROR_CODE_UNKNOWN_TOPIC
    found = plain(topic)
    assert (found["topic"], found["error"]["code"]) == ("t", "ERROR_CODE_UNKNOWN_TOPIC")
    assert found["partitions"][0]["isr"] == [2, 3]
    assert plain(TopicInfo())["error"] is None
    assert plain({"a": b"\x00"}) == {"a": b"\x00"}
    struct = Struct()
    struct.update({"x": 1.5})
    (entry,) = plain(struct)["fields"]
    assert (entry["key"], entry["value"]["number_value"]) == ("x", 1.5)


AVRO: Final = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}


@pytest.fixture
def written() -> Any:
    """Writes a value in Avro."""

    def write(value: dict[str, Any]) -> bytes:
        stream = BytesIO()
        fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO), value)
        return stream.getvalue()

    return write


def test_avro_is_decoded_with_the_schema_or_its_text(written: Any) -> None:
    data = written({"id": 2**40, "note": "é"})
    for schema in (AVRO, json.dumps(AVRO)):
        assert decoded(data, value=avro_decoder(schema)) == {"id": 2**40, "note": "é"}


def test_too_few_and_too_many_bytes_are_no_avro(written: Any) -> None:
    data = written({"id": 5, "note": "long enough"})
    for wrong, cause in ((data[:-3], "EOFError"), (data + b"xy", "2 bytes are left")):
        with pytest.raises(DecodeError, match=cause):
            decoded(wrong, value=avro_decoder(AVRO))


@pytest.mark.usefixtures("written")
@pytest.mark.parametrize("schema", ["{", {"type": "no such"}, 5])
def test_a_wrong_schema_is_refused_at_once(schema: Any) -> None:
    with pytest.raises(MisuseError, match="the schema is invalid"):
        avro_decoder(schema)


def test_a_missing_package_is_one_line_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(MisuseError, match=r"pip install 'penstock\[avro\]'"):
        avro_decoder("{}")
