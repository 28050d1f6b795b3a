"""Reads topics back, from their first record to their end, as committed and as they are stored.

    read_committed ───▶ what every reader sees
    read_uncommitted ─▶ what is in the log: also the records of transactions that were aborted

Both are read when no transaction is open any more, so that they may differ by aborted ones only.
"""

import time
from typing import Final, Literal

import pandas as pd
import pyarrow as pa
from pyarrow import json as arrow_json

from penstock.client import Admin, Consumer, TopicPartition
from penstock.errors import ClusterError

SETTLE_S: Final = 60.0
READ_S: Final = 120.0
Isolation = Literal["read_committed", "read_uncommitted"]


def partitions_of(admin: Admin, topic: str) -> list[TopicPartition]:
    found = admin.describe_topics([topic])[topic].partitions
    return [TopicPartition(topic, each.partition) for each in found]


def settle(admin: Admin, topic: str) -> None:
    """Returns when no transaction is open in any partition. Raises ClusterError if one stays."""
    limit = time.monotonic() + SETTLE_S
    for where in partitions_of(admin, topic):
        while admin.partition_transactions(where).open:
            if time.monotonic() > limit:
                raise ClusterError(f"{where} has a transaction that stays open")
            time.sleep(0.1)


def read_topic(bootstrap: str, topic: str, isolation: Isolation, fields: pa.Schema) -> pd.DataFrame:
    """Columns partition, offset, and those of `fields` from the values' JSON; in log order."""
    tables: list[pa.Table] = []
    with (
        Admin(bootstrap) as admin,
        Consumer(bootstrap, isolation_level=isolation, auto_offset_reset="earliest") as consumer,
    ):
        wanted = partitions_of(admin, topic)
        consumer.assign(wanted)
        limit = time.monotonic() + READ_S
        while True:
            table = consumer.poll_arrow(0.5)
            if table.num_rows:
                tables.append(table)
            elif not any(consumer.lag().get(where, 1) for where in wanted):
                break
            if time.monotonic() > limit:
                raise ClusterError(f"topic {topic} could not be read back in {READ_S:.0f} s")
    return _frame(tables, fields)


def _frame(tables: list[pa.Table], fields: pa.Schema) -> pd.DataFrame:
    places = {"partition": pa.int32(), "offset": pa.int64()}
    if not tables:
        empty = pa.schema([*places.items(), *fields])
        return empty.empty_table().to_pandas()
    records = pa.concat_tables(tables)
    lines = b"\n".join(records["value"].to_pylist())
    parsed = arrow_json.read_json(
        pa.BufferReader(lines),
        parse_options=arrow_json.ParseOptions(
            explicit_schema=fields, unexpected_field_behavior="ignore"
        ),
    )
    frame = parsed.select(fields.names).to_pandas()
    for name in places:
        frame[name] = records[name].to_pandas()
    return frame.sort_values(["partition", "offset"], ignore_index=True)
