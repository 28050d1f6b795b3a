"""Encoding and decoding record batches: columns beside one protobuf message per record."""

import argparse
import os
import time
from collections.abc import Callable

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from benchmarks.common import figure
from penstock.client.arrow import batch_to_arrow
from penstock.core.records import build_batch, decode_batch, encode_columns

ROUNDS = 5


def rate(count: int, run: Callable[[], object]) -> float:
    """Records per second, the best of several rounds."""
    best = 0.0
    for _ in range(ROUNDS):
        began = time.perf_counter()
        run()
        best = max(best, count / (time.perf_counter() - began))
    return best


def per_record_class() -> type:
    """A message with one sub-message per record: the layout that was not chosen (ADR 0003)."""
    file = descriptor_pb2.FileDescriptorProto(name="rows.proto", package="rows", syntax="proto3")
    row = file.message_type.add(name="Row")
    row.field.add(name="key", number=1, type=12, label=1)
    row.field.add(name="value", number=2, type=12, label=1)
    row.field.add(name="timestamp_ms", number=3, type=3, label=1)
    rows = file.message_type.add(name="Rows")
    rows.field.add(name="rows", number=1, type=11, label=3, type_name=".rows.Row")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("rows.Rows"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--bytes", type=int, default=100)
    args = parser.parse_args()
    count, now = args.records, 1_700_000_000_000
    values = [os.urandom(args.bytes) for _ in range(count)]
    keys = [b"%06d" % index for index in range(count)]
    label = f"{count:,} records of {args.bytes} B with keys"
    rows_class = per_record_class()

    def encode_rows() -> bytes:
        rows = rows_class()
        add = rows.rows.add
        for key, value in zip(keys, values, strict=True):
            add(key=key, value=value, timestamp_ms=now)
        return bytes(rows.SerializeToString())

    encoded_rows = encode_rows()

    def decode_rows() -> list[tuple[bytes, bytes, int]]:
        rows = rows_class.FromString(encoded_rows)  # type: ignore[attr-defined]
        return [(row.key, row.value, row.timestamp_ms) for row in rows.rows]

    def encode() -> object:
        return build_batch(encode_columns(values, keys, timestamps_ms=now))

    batch = build_batch(encode_columns(values, keys, timestamps_ms=now))

    def decode() -> object:
        columns = decode_batch(batch)
        return list(zip(columns.keys(), columns.values(), columns.timestamps(), strict=True))

    def to_arrow() -> object:
        return batch_to_arrow(decode_batch(batch), "t", 0, 0, count, include_headers=False)

    vs = "one message per record"
    figure(f"encode, {label}", rate(count, encode), "records/s", vs, rate(count, encode_rows))
    peer = rate(count, decode_rows)
    figure(f"decode to tuples, {label}", rate(count, decode), "records/s", vs, peer)
    figure(f"decode to Arrow, {label}", rate(count, to_arrow), "records/s", vs, peer)


if __name__ == "__main__":
    main()
