"""From bytes to the user's objects: what `serializers.py` does, backwards, for readers.

    Record (bytes) ──key decoder, value decoder──▶ DecodedRecord (objects)
                           └ fails ──▶ DecodeError naming topic, partition, offset: raised or kept

A decoder is anything callable with (topic, bytes); it raises whatever it likes. None is never
passed to it: a null stays None. Consumers return bytes and never decode by themselves, so a record
that nobody can decode stops no consumer: the caller of `decode_records` decides.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Literal, NamedTuple, Protocol

from penstock.client.dead_letters import cause_text, place_of
from penstock.client.model import Record
from penstock.client.setting_checks import one_of
from penstock.core.columns import Headers
from penstock.errors import ClusterError, ErrorCode, MisuseError

UndecodablePolicy = Literal["error", "keep"]


class Decoder(Protocol):
    """Turns a key or value into an object. Called once per record; never with None."""

    def __call__(self, topic: str, data: bytes, /) -> Any:
        """Returns the object. Raises any exception if these bytes are not what it expects."""


class DecodeError(ClusterError):
    """A record's key or value is not what the decoder expects.

    Attributes:
        record: The record as it was read.
        part: "key" or "value".
    """

    def __init__(self, record: Record, part: Literal["key", "value"], cause: str) -> None:
        data = record.key if part == "key" else record.value
        super().__init__(
            f"{place_of(record)}: cannot decode the {part} ({len(data or b''):,} bytes): {cause}; "
            "fix the decoder, or continue without such records with on_undecodable='keep'",
            ErrorCode.INVALID_RECORD,
        )
        self.record = record
        self.part = part


class DecodedRecord(NamedTuple):
    """One record with a decoded key and value.

    Attributes:
        topic: As in `Record`.
        partition: As in `Record`.
        offset: As in `Record`.
        timestamp_ms: As in `Record`.
        key: What the decoder of keys returned; without one, bytes as in `raw`. None = null, or
            there is an `error`.
        value: Likewise, by the decoder of values.
        headers: As in `Record`; never decoded.
        error: With on_undecodable="keep", why it could not be decoded; None = it was.
        raw: The record as it was read.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: Any
    value: Any
    headers: Headers
    error: DecodeError | None
    raw: Record


def decode_records(
    records: Iterable[Record],
    *,
    key: Decoder | None = None,
    value: Decoder | None = None,
    on_undecodable: UndecodablePolicy = "error",
) -> Iterator[DecodedRecord]:
    """Decodes records as they are taken: of a batch, of a consumer that is iterated over.

    Args:
        records: As read.
        key: Decodes keys; None = they stay bytes.
        value: Likewise for values.
        on_undecodable: What to do with a record that cannot be decoded: "error" raises DecodeError;
            "keep" yields it without key and value, with the error in its `error`.

    Raises DecodeError; MisuseError for another policy.
    """
    return Decoding(key=key, value=value, on_undecodable=on_undecodable).apply(records)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How records are decoded; see `decode_records`."""

    key: Decoder | None = None
    value: Decoder | None = None
    on_undecodable: UndecodablePolicy = "error"

    def __post_init__(self) -> None:
        one_of(self, "on_undecodable", "error", "keep")
        for name in ("key", "value"):
            decoder = getattr(self, name)
            if decoder is not None and not callable(decoder):
                raise MisuseError(
                    f"{name} is {decoder!r}; it must be a decoder, such as json_decoder(), or None"
                )

    def apply(self, records: Iterable[Record]) -> Iterator[DecodedRecord]:
        """Decodes each record as it is taken."""
        for record in records:
            error: DecodeError | None = None
            try:
                found = _part(record, "key", self.key), _part(record, "value", self.value)
            except DecodeError as seen:
                if self.on_undecodable == "error":
                    raise
                error, found = seen, (None, None)
            yield DecodedRecord(*record[:4], *found, record.headers, error, record)


def _part(record: Record, part: Literal["key", "value"], decoder: Decoder | None) -> Any:
    data = record.key if part == "key" else record.value
    if decoder is None or data is None:
        return data
    try:
        return decoder(record.topic, data)
    except Exception as error:
        raise DecodeError(record, part, cause_text(error)) from error


def string_decoder(encoding: str = "utf-8") -> Decoder:
    """Text in UTF-8, or another encoding."""

    def decode(_topic: str, data: bytes, /) -> str:
        return data.decode(encoding)

    return decode


def json_decoder() -> Decoder:
    """JSON: dictionaries, lists, text, numbers, booleans and None."""

    def decode(_topic: str, data: bytes, /) -> Any:
        return json.loads(data)

    return decode


def protobuf_decoder(message_class: type[Any]) -> Decoder:
    """Messages of one generated class. In Arrow and data frames, they become structs of their
    fields: enums by name, maps as lists of key and value, fields that are not set as null.

    Raises MisuseError if it is no such class.
    """
    parse: Callable[[bytes], Any] | None = getattr(message_class, "FromString", None)
    if parse is None:
        raise MisuseError(
            f"protobuf_decoder needs a generated message class, not {message_class!r}"
        )

    def decode(_topic: str, data: bytes, /) -> Any:
        return parse(data)

    return decode


def avro_decoder(schema: Mapping[str, Any] | list[Any] | str) -> Decoder:
    """Values in Avro's binary encoding, without a header, written with `schema`.

    `schema`: parsed JSON, or its text. Needs fastavro: pip install 'penstock[avro]'. Raises
    MisuseError without it, or if the schema is invalid.
    """
    try:
        import fastavro  # noqa: PLC0415 - an optional package, only on demand
        from fastavro.schema import SchemaParseException, UnknownType  # noqa: PLC0415 - likewise
    except ImportError as error:
        raise MisuseError(
            "avro_decoder needs the package fastavro, which is not installed: "
            "pip install 'penstock[avro]'"
        ) from error
    try:
        given: Any = json.loads(schema) if isinstance(schema, str) else schema
        parsed = fastavro.parse_schema(given)
    except (SchemaParseException, UnknownType, ValueError, KeyError, TypeError) as error:
        raise MisuseError(f"avro_decoder: the schema is invalid: {cause_text(error)}") from error

    def decode(_topic: str, data: bytes, /) -> Any:
        stream = BytesIO(data)
        found = fastavro.schemaless_reader(stream, parsed, None)
        if stream.tell() != len(data):
            raise ValueError(
                f"{len(data) - stream.tell()} bytes are left: written with another schema"
            )
        return found

    return decode


def plain(value: Any) -> Any:
    """A decoded value in Python's own types: protobuf messages, however deep, as dictionaries."""
    descriptor = getattr(value, "DESCRIPTOR", None)
    if descriptor is None or not hasattr(descriptor, "fields"):
        return value
    return {field.name: _field(value, field) for field in descriptor.fields}


def _field(message: Any, field: Any) -> Any:
    if field.has_presence and not message.HasField(field.name):
        return None
    found = getattr(message, field.name)
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        values = kind.fields_by_name["value"]
        return [{"key": name, "value": _single(found[name], values)} for name in found]
    if field.is_repeated:
        return [_single(each, field) for each in found]
    return _single(found, field)


def _single(value: Any, field: Any) -> Any:
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    return plain(value) if field.message_type is not None else value
