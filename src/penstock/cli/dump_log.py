"""`penstock dump-log`: what a stopped broker has on its disk, a line per batch.

Reading and checking is done by `penstock_broker.local.dump`; brokers know topics by id only.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.extras import load_broker_module
from penstock.cli.options import Output, OutputOption, directory, example
from penstock.cli.output import format_table
from penstock.errors import PenstockError


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(
        "dump-log",
        epilog=example(
            "penstock dump-log --data-dir ~/.local/state/penstock/local/flights/broker-0",
            "penstock dump-log --data-dir /data -p 3 --offset 1000 -o json",
        ),
    )(dump_log)


def dump_log(
    *,
    data_dir: Annotated[
        Path,
        typer.Option(
            "--data-dir",
            help="Data directory of the broker, which must be stopped.",
            parser=directory,
            metavar="DIRECTORY",
        ),
    ],
    topic_id: Annotated[
        str | None, typer.Option(help="Only this topic; brokers store ids, not names.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Only this partition.")
    ] = None,
    offset: Annotated[
        int, typer.Option("--offset", min=0, help="Start with the batch that contains this offset.")
    ] = 0,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print the header of every stored batch, and check its CRCs.

    Exit code 1 if a batch is corrupt. JSON is one object per line, YAML one document per
    batch; the batches of a partition come in order, one partition after another.
    """
    dump = load_broker_module("local.dump", "`penstock dump-log`")
    corrupt = 0
    with dump.open_stopped_broker(data_dir) as store:
        for replica in dump.dump_partitions(store, topic_id, partition, offset):
            corrupt += _print_partition(replica, output)
    if corrupt:
        raise typer.Exit(1)


def _print_partition(replica: Any, output: Output) -> int:
    """Prints one replica; returns 1 if it ended at a corrupt batch."""
    name = str(replica.key)
    if output is Output.TABLE:
        sys.stdout.write(
            f"{name}: log start {replica.log_start_offset}, "
            f"high watermark {replica.high_watermark}, log end {replica.log_end_offset}\n"
        )
    page: list[dict[str, object]] = []
    corrupt = 0
    try:
        for batch in replica.batches:
            page.append(_row(batch))
            if len(page) == _PAGE:
                _print_page(name, page, output)
                page = []
    except PenstockError as error:
        corrupt = 1
        sys.stderr.write(f"penstock: {name}: {error.message}\n")
    _print_page(name, page, output)
    return corrupt


_PAGE = 500
"""Batches per table: columns are aligned within one table, and memory stays bounded."""


def _print_page(replica: str, rows: list[dict[str, object]], output: Output) -> None:
    if output is Output.TABLE:
        sys.stdout.write(format_table(rows) if rows else "")
    else:
        begins = "---\n" if output is Output.YAML else ""
        for row in rows:
            sys.stdout.write(begins + json.dumps({"replica": replica, **row}) + "\n")


def _row(batch: Any) -> dict[str, object]:
    from penstock.core.batch import BatchFlags  # noqa: PLC0415 - commands load what they need

    header = batch.header
    return {
        "offset": header.base_offset,
        "records": header.record_count,
        "epoch": header.leader_epoch,
        "bytes": batch.size_bytes,
        "codec": header.codec.name.lower(),
        "first_time_ms": header.first_timestamp_ms,
        "max_time_ms": header.max_timestamp_ms,
        "append_time_ms": header.append_time_ms or None,
        "producer": header.producer_id if header.producer_id >= 0 else None,
        "sequence": header.base_sequence if header.base_sequence >= 0 else None,
        "compacted": "yes" if header.flags & BatchFlags.COMPACTED else None,
        "crc": f"{header.crc:08x}",
    }
