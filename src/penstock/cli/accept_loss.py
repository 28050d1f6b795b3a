"""Damaged batches that no replica has any more: which there are, and giving them up by name."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from penstock.cli.at_once import describe_soon, logs_at_once, tell_silent
from penstock.cli.changes import confirm
from penstock.cli.options import Output
from penstock.cli.output import keep_code, print_record, print_rows
from penstock.cli.usage import WrongUsageError

if TYPE_CHECKING:
    from penstock.client import Admin, OffsetSpan
    from penstock.core.types import TopicPartition


def parse_offsets(text: str) -> tuple[int, int]:
    """`100-109`, both ends included, or `100`. Raises WrongUsageError."""
    first, dash, last = text.partition("-")
    numbers = [first, last] if dash else [first, first]
    if not all(one.isascii() and one.isdigit() and len(one) <= 18 for one in numbers):
        raise WrongUsageError(
            f"--offsets is {text!r}; it must be FIRST-LAST, both included, as 100-109"
        )
    if int(numbers[1]) < int(numbers[0]):
        raise WrongUsageError(f"--offsets is {text!r}: {numbers[1]} is before {numbers[0]}")
    return int(numbers[0]), int(numbers[1])


def joined(spans: Iterable["OffsetSpan"]) -> list["OffsetSpan"]:
    """One for those that follow each other: a batch each is what brokers say."""
    found: list[OffsetSpan] = []
    for span in sorted(spans, key=lambda one: one.first):
        if found and span.first == found[-1].last + 1:
            found[-1] = replace(found[-1], last=span.last)
        else:
            found.append(span)
    return found


def show_lost(admin: "Admin", output: Output) -> None:
    """What leaders cannot read, and nobody has given them.

    Of one that has stopped it may not be known what that is, and never be, if its log cannot be
    opened. Raises typer.Exit with 1 if a live broker does not say.
    """
    topics = admin.describe_topics()
    leaders = {
        (name, one.partition, one.leader)
        for name, topic in topics.items()
        for one in topic.partitions
    }
    alive = [one.broker_id for one in describe_soon(admin).brokers if one.alive]
    logs, silent = logs_at_once(admin, alive)
    rows = []
    for broker in logs:
        for log in broker.logs:
            if (log.topic, log.partition, broker.broker_id) not in leaders:
                continue
            where = f"{log.topic}/{log.partition}"
            found = {
                str(span): f"penstock partitions accept-loss {where} --offsets {span}"
                for span in joined(log.lost)
            }
            if log.mending and not (found or log.is_leader):
                found = {"unknown": log.mending}
            rows += [
                {
                    "partition": where,
                    "offsets": offsets,
                    "broker": broker.broker_id,
                    "if_nobody_can_have_it": do,
                }
                for offsets, do in found.items()
            ]
    with keep_code():
        print_rows(rows, output, empty="no batch is known to be lost")
    if tell_silent(silent):
        raise typer.Exit(1)


def accept(
    admin: "Admin",
    where: "TopicPartition",
    offsets: "OffsetSpan",
    without: tuple[int, ...],
    output: Output,
    *,
    yes: bool,
    dry_run: bool,
) -> None:
    """Says what would be given up, asks, and has it given up."""
    lost = joined(admin.accept_loss(where, offsets, without=without, validate_only=True))
    if lost and not dry_run:
        count = sum(one.last - one.first + 1 for one in lost)
        named = ", ".join(map(str, lost))
        confirm(f"Give up {count} offsets of {where} for ever: {named}?", yes=yes)
        lost = joined(admin.accept_loss(where, offsets, without=without))
    if output is not Output.TABLE:
        spans = [{"first": one.first, "last": one.last} for one in lost]
        print_record({"partition": str(where), "lost": spans, "dry_run": dry_run}, output)
        return
    if not lost:
        typer.echo(f"nothing is lost in offsets {offsets} of {where}")
    for one in lost:
        typer.echo(f"offsets {one} of {where} {'could be' if dry_run else 'are'} given up")
