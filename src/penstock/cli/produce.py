"""`penstock produce`: lines from standard input or a file become records.

    input ──line──▶ key | value ──▶ Producer.send ──▶ Delivery, kept until its outcome is known

Memory is bounded by the producer's buffer: `send` waits for space, and finished deliveries are
dropped. The first record that cannot be delivered ends the program with its error. Ctrl-C sends
what was read so far, for a limited time.
"""

import logging
import sys
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli.connect import locate
from penstock.cli.input_records import open_input, split
from penstock.cli.options import (
    RECORDS_MAX,
    Bootstrap,
    Delimiter,
    TopicArgument,
    example,
    parse_pairs,
)
from penstock.cli.picking import parse_delimiter, parse_key_delimiter
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.client import Delivery, Producer

INTERRUPTED_FLUSH_S: Final = 5.0


class AcksOption(StrEnum):
    """Which replicas must store a record before it counts as written."""

    ALL = "all"
    LEADER = "leader"
    NONE = "none"


class SyncOption(StrEnum):
    """What "stored" means: page cache or fsync."""

    OS = "os"
    DISK = "disk"


class CodecOption(StrEnum):
    """Compression of batches."""

    NONE = "none"
    ZSTD = "zstd"
    LZ4 = "lz4"


Acks = Annotated[
    AcksOption,
    typer.Option("--acks", help="Which replicas must store a record before it counts as written."),
]
Sync = Annotated[
    SyncOption,
    typer.Option(
        "--sync",
        help="When a record counts as stored: in the page cache (os) or after fsync (disk).",
    ),
]
Codec = Annotated[CodecOption, typer.Option("--codec", "-z", help="Compression.")]


KeyDelimiter = Annotated[
    str | None,
    typer.Option(
        "--key-delimiter", "-K", help="Delimiter between key and value, as : or \\t or \\0."
    ),
]
Key = Annotated[str | None, typer.Option("--key", "-k", help="Key of every record.")]
Count = Annotated[
    int | None,
    typer.Option("--count", "-c", min=1, max=RECORDS_MAX, help="Stop after this many lines."),
]
Header = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME=VALUE", help="On every record; repeatable."),
]


@dataclass(frozen=True, slots=True)
class LineFormat:
    """How a line becomes key and value. `null` None: nothing is null but a missing key."""

    delimiter: bytes | None
    fixed_key: bytes | None
    null: bytes | None

    def split(self, line: bytes) -> tuple[bytes | None, bytes | None]:
        """Key and value of a line without its newline; no delimiter in it: the fixed key."""
        key, value = self.fixed_key, line
        if self.delimiter is not None:
            before, found, after = line.partition(self.delimiter)
            if found:
                key, value = before, after
        return self._or_null(key), self._or_null(value)

    def _or_null(self, data: bytes | None) -> bytes | None:
        return None if data == self.null else data


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(
        epilog=example(
            "printf 'AA:delayed\\nUA:on time\\n' | penstock produce flights -K :",
            "penstock produce flights --file flights.tsv -K '\\t'",
            "tail -f app.log | penstock produce logs -H source=app -z zstd",
        )
    )(produce)


def produce(
    topic: TopicArgument,
    *,
    key_delimiter: KeyDelimiter = None,
    key: Key = None,
    header: Header = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", min=0, help="Partition, instead of by key."),
    ] = None,
    count: Count = None,
    null: Annotated[
        str | None, typer.Option("--null", "-Z", help="A key or value with this text is null.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="Read this; - or without it: standard input."),
    ] = None,
    delimiter: Delimiter = None,
    codec: Codec = CodecOption.NONE,
    acks: Acks = AcksOption.ALL,
    sync: Sync = SyncOption.OS,
    bootstrap: Bootstrap = None,
) -> None:
    """Write each line of standard input, or of a file, as a record.

    A line without the delimiter has a null key. Exit code 0 means that every line was acknowledged
    as given by --acks and --sync.
    """
    lines = LineFormat(parse_key_delimiter(key_delimiter), _encode(key), _encode(null))
    headers = [(n, v.encode()) for n, v in parse_pairs(header, "--header", "NAME=VALUE").items()]
    opened = open_input(file)
    records = islice(split(opened, parse_delimiter(delimiter)), count)
    producer = open_producer(bootstrap, acks, sync, codec)
    pending: deque[Delivery] = deque()
    try:
        producer.prepare(topic, partition)  # even without a line to send: the topic must exist
        for number, line in enumerate(records, start=1):
            record_key, value = lines.split(line)
            try:
                pending.append(
                    producer.send(topic, value, record_key, partition=partition, headers=headers)
                )
            except PenstockError as error:
                error.args = (f"line {number}: {error.message}",)
                raise
            while pending and pending[0].done():
                pending.popleft().result()
        producer.flush()
        for delivery in pending:
            delivery.result()
    except KeyboardInterrupt:
        lost = producer.close(INTERRUPTED_FLUSH_S)
        if lost:
            sys.stderr.write(f"penstock: interrupted; {lost} records were not acknowledged\n")
        raise typer.Exit(130) from None
    finally:
        producer.close(INTERRUPTED_FLUSH_S)
        if file is not None:
            opened.close()


def open_producer(
    bootstrap: str | None, acks: AcksOption, sync: SyncOption, codec: CodecOption
) -> "Producer":
    """A producer with the options of the command line; owned by the caller."""
    from penstock import client  # noqa: PLC0415 - grpc only when it is needed
    from penstock.client.producer.sender import DELIVERY_FAILED  # noqa: PLC0415 - as above

    # Of a failed delivery, the client warns and its result raises: the command tells it, once.
    log = logging.getLogger("penstock.client")
    log.addFilter(lambda record: record.msg != DELIVERY_FAILED)
    where = locate(bootstrap)
    return client.Producer(
        where.bootstrap,
        **where.options,
        acks=client.Acks[acks.name],
        sync=client.Sync[sync.name],
        codec=client.Codec[codec.name],
    )


def _encode(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
