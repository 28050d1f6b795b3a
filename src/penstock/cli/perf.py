"""`penstock perf …`: how fast this cluster is for one producer or one consumer.

A line per second on standard error while it runs, the result on standard output. A measuring
tool for people; the numbers the project publishes come from `benchmarks/`.
"""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final, Protocol

import typer

from penstock.cli.bounded import POLL_S, Bounded
from penstock.cli.connect import locate, open_admin
from penstock.cli.consume import choose_partitions
from penstock.cli.options import Bootstrap, Output, OutputOption, TopicArgument, example
from penstock.cli.output import print_record
from penstock.cli.places import Place, PlaceKind, resolve
from penstock.cli.produce import (
    Acks,
    AcksOption,
    Codec,
    CodecOption,
    Sync,
    SyncOption,
    open_producer,
)

if TYPE_CHECKING:
    from penstock.client import Consumer, Delivery
    from penstock.core.columns import Columns

app = typer.Typer(help="Measure produce and consume speed.", no_args_is_help=True)

COLUMNS_RECORDS: Final = 2_000
"""Records per `send_columns` call."""
CALL_BYTES_MAX: Final = 256 * 1024
"""Bytes per call: small compared with the producer's buffer."""
RECORD_BYTES_MAX: Final = 1024**3
"""More than any topic accepts, and small enough to fit into memory."""
PENDING_MAX: Final = 100
"""Calls in flight at the same time."""
MIB: Final = 1024 * 1024


@dataclass(slots=True)
class Meter:
    """Counts, and prints a line each second."""

    verb: str
    records: int = 0
    size_bytes: int = 0
    latencies_s: list[float] = field(default_factory=list)
    started_s: float = field(default_factory=time.monotonic)
    _shown_s: float = 0.0
    _shown_records: int = 0

    def add(self, records: int, size_bytes: int) -> None:
        self.records += records
        self.size_bytes += size_bytes
        elapsed = time.monotonic() - self.started_s
        if elapsed - self._shown_s >= 1.0:
            rate = (self.records - self._shown_records) / (elapsed - self._shown_s)
            sys.stderr.write(
                f"{elapsed:6.1f} s  {self.records:>12,} {self.verb}  {rate:>12,.0f}/s\n"
            )
            self._shown_s, self._shown_records = elapsed, self.records

    def result(self) -> dict[str, object]:
        elapsed = max(time.monotonic() - self.started_s, 1e-9)
        result: dict[str, object] = {
            "records": self.records,
            "seconds": round(elapsed, 3),
            "records_per_second": round(self.records / elapsed, 1),
            "mib_per_second": round(self.size_bytes / MIB / elapsed, 3),
        }
        if self.latencies_s:
            ordered = sorted(self.latencies_s)
            for percent in (50, 99):
                value = ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
                result[f"latency_p{percent}_ms"] = round(value * 1000, 2)
        return result


@app.command(
    epilog=example(
        "penstock perf produce flights --records 1000000 --record-bytes 100",
        "penstock perf produce flights --per-record --acks leader -o json",
    )
)
def produce(
    topic: TopicArgument,
    *,
    records: Annotated[int, typer.Option(min=1, help="Number of records.")] = 1_000_000,
    record_bytes: Annotated[
        int, typer.Option(min=0, max=RECORD_BYTES_MAX, help="Size of each value.")
    ] = 100,
    per_record: Annotated[
        bool, typer.Option("--per-record", help="One send() per record instead of columns.")
    ] = False,
    acks: Acks = AcksOption.ALL,
    sync: Sync = SyncOption.OS,
    codec: Codec = CodecOption.NONE,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write random records as fast as one producer can.

    Latency is from a call (of up to 2,000 records) to its acknowledgement.
    """
    meter = Meter("written")
    producer = open_producer(bootstrap, acks, sync, codec)
    per_call = max(1, min(COLUMNS_RECORDS, CALL_BYTES_MAX // max(record_bytes, 1)))
    values = _values(per_call, record_bytes)

    def send_columns(count: int) -> Pending:
        return producer.send_columns(topic, values[:count])

    def send_each(count: int) -> Pending:
        return Deliveries([producer.send(topic, value) for value in values[:count]])

    try:
        send = send_each if per_record else send_columns
        for count in _acknowledged(send, records, per_call, meter):
            meter.add(count, count * record_bytes)
        result = meter.result()
    finally:
        producer.close(POLL_S)
    print_record({"topic": topic, "record_bytes": record_bytes, **result}, output)


class Pending(Protocol):
    """Records in flight."""

    def result(self) -> object:
        """Blocks; raises if one of them was not delivered."""


class Deliveries:
    """Deliveries of single records as one."""

    def __init__(self, deliveries: "list[Delivery]") -> None:
        self._deliveries = deliveries

    def result(self) -> object:
        return [delivery.result() for delivery in self._deliveries]


def _values(count: int, record_bytes: int) -> list[bytes]:
    """Values that differ and do not compress."""
    noise = os.urandom(record_bytes + count)
    return [noise[i : i + record_bytes] for i in range(count)]


def _acknowledged(
    send: Callable[[int], Pending], records: int, per_call: int, meter: Meter
) -> Iterator[int]:
    """Keeps calls in flight; yields how many records each acknowledged call had."""
    pending: deque[tuple[float, int, Pending]] = deque()
    sent = 0
    while sent < records or pending:
        while sent < records and len(pending) < PENDING_MAX:
            count = min(per_call, records - sent)
            pending.append((time.monotonic(), count, send(count)))
            sent += count
        began, count, oldest = pending.popleft()
        oldest.result()
        meter.latencies_s.append(time.monotonic() - began)
        yield count


@app.command(
    epilog=example("penstock perf consume flights", "penstock perf consume flights --arrow")
)
def consume(
    topic: TopicArgument,
    *,
    records: Annotated[
        int | None,
        typer.Option(min=1, help="Stop after this many records; without it, at the end."),
    ] = None,
    arrow: Annotated[
        bool, typer.Option("--arrow", help="Read Arrow tables instead of batches.")
    ] = False,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Read a topic from its beginning as fast as one consumer can.

    Keys and values are counted in bytes, but not turned into Python objects. Fails if for 30 s
    nothing comes.
    """
    from penstock.client import Consumer  # noqa: PLC0415 - grpc only when it is needed

    where = locate(bootstrap)
    with open_admin(where) as admin:
        partitions = choose_partitions(admin, topic, None)
        ends = resolve(admin, Place(PlaceKind.END), partitions)
    meter = Meter("read")
    with Consumer(where.bootstrap, **where.options) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning(partitions)
        poll = _poll_arrow if arrow else _poll_batches
        bounded = Bounded(consumer, ends)
        while not bounded.is_over():
            meter.add(*poll(consumer))
            if records is not None and meter.records >= records:
                break
        result = meter.result()
    print_record({"topic": topic, **result}, output)


def _poll_batches(consumer: "Consumer") -> tuple[int, int]:
    batches = consumer.poll(POLL_S)
    count = sum(batch.record_count for batch in batches)
    return count, sum(_data_bytes(batch.columns) for batch in batches)


def _poll_arrow(consumer: "Consumer") -> tuple[int, int]:
    table = consumer.poll_arrow(POLL_S)
    return table.num_rows, table.nbytes


def _data_bytes(columns: "Columns") -> int:
    """Keys and values. Of a batch that was cut at the start the whole counts: it was read."""
    return len(columns.key_data) + len(columns.value_data)
