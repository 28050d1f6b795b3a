"""`penstock consume --group`: one more member of a group, whose output is its work.

    poll ──▶ print, flush ──▶ the next poll commits what is printed (at least once)

Printed records are also committed at the end; records that a closed pipe did not accept are not.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.cli.connect import Located
from penstock.cli.picking import Rendering
from penstock.cli.places import PlaceKind, parse_place
from penstock.cli.usage import WrongUsageError

if TYPE_CHECKING:
    from penstock.client import Consumer
    from penstock.client.config import AutoOffsetReset

POLL_S: Final = 1.0
POLL_RECORDS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """The given options. `count` None = no end."""

    group: str
    topics: Sequence[str]
    reset: "AutoOffsetReset"
    exit_at_end: bool
    count: int | None


def consume_in_group(where: Located, options: GroupOptions, render: Rendering) -> None:
    """Prints this member's share until the end, the count or Ctrl-C."""
    from penstock.client import Consumer  # noqa: PLC0415 - grpc only when it is needed

    with Consumer(
        where.bootstrap,
        group_id=options.group,
        auto_offset_reset=options.reset,
        client_id="penstock-cli",
        **where.options,
    ) as consumer:
        consumer.subscribe(list(options.topics))
        left = options.count
        while left != 0:
            batches = consumer.poll(
                POLL_S, POLL_RECORDS_MAX if left is None else min(left, POLL_RECORDS_MAX)
            )
            for batch in batches:
                printed = list(render(batch.records()))
                sys.stdout.buffer.write(b"".join(printed))
                left = None if left is None else left - len(printed)
            sys.stdout.buffer.flush()
            if not batches and options.exit_at_end and _has_read_all(consumer):
                break
        consumer.commit()


def parse_reset(offset: str) -> "AutoOffsetReset":
    """Where a group begins that has no committed offsets. Raises WrongUsageError."""
    place = parse_place(offset, "--offset")
    if place.kind is PlaceKind.BEGINNING:
        return "earliest"
    if place.kind is PlaceKind.END:
        return "latest"
    raise WrongUsageError(
        f"--offset {offset} needs reading without a group; with --group, use beginning or end, "
        "or move the group first: penstock group reset --help"
    )


def _has_read_all(consumer: "Consumer") -> bool:
    """Whether this member has partitions, and nothing unread in them."""
    lag = consumer.lag()
    return bool(lag) and not any(lag.values())
