"""`penstock consume --group`: one more member of a group, whose output is its work.

    poll ──▶ print, flush ──▶ the next poll commits what is printed (at least once)

Printed records are also committed at the end; records that a closed pipe did not accept are not.
With --exit, each partition ends where it ended when this member got it.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.cli.bounded import POLL_S, Bounded
from penstock.cli.connect import Located, open_admin
from penstock.cli.picking import Rendering
from penstock.cli.places import Place, PlaceKind, parse_place, resolve
from penstock.cli.usage import WrongUsageError

if TYPE_CHECKING:
    from penstock.client import ConsumedBatch, Consumer
    from penstock.client.config import AutoOffsetReset
    from penstock.core.types import TopicPartition

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
        share = _Share(where, consumer, options.group) if options.exit_at_end else None
        left = options.count
        while left != 0:
            batches = consumer.poll(
                POLL_S, POLL_RECORDS_MAX if left is None else min(left, POLL_RECORDS_MAX)
            )
            for batch in batches if share is None else share.cut(batches):
                printed = list(render(batch.records()))
                sys.stdout.buffer.write(b"".join(printed))
                left = None if left is None else left - len(printed)
            sys.stdout.buffer.flush()
            if share is not None and share.is_read():
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


class _Share:
    """What one member reads until it ends: each of its partitions to where that ended when the
    member got it. Others write and read meanwhile."""

    def __init__(self, where: Located, consumer: "Consumer", group: str) -> None:
        self._where = where
        self._consumer = consumer
        self._group = group
        self._bounded = Bounded(consumer, {})

    def cut(self, batches: "list[ConsumedBatch]") -> "list[ConsumedBatch]":
        """Of a poll, what is before the ends; the rest is neither printed nor committed."""
        owned = self._consumer.assignment()
        known = {one: end for one, end in self._bounded.ends.items() if one in owned}
        if new := owned - known.keys():
            with open_admin(self._where) as admin:
                known |= resolve(admin, Place(PlaceKind.END), sorted(new))
        self._bounded.ends = known
        before: list[ConsumedBatch] = []
        passed: set[TopicPartition] = set()
        for batch in batches:
            where, first = batch.topic_partition, batch.first_offset
            end = known.get(where, batch.next_offset)
            if where in passed:
                continue
            if batch.next_offset > end:
                passed.add(where)
                self._consumer.seek(where, max(first, end))
                self._consumer.pause([where])
            before.append(batch.between(first, end))
        return before

    def is_read(self) -> bool:
        """Whether nothing is left for this member. Raises UnreachableError."""
        return self._bounded.is_over() if self._bounded.ends else self._is_left_out()

    def _is_left_out(self) -> bool:
        """Whether the group has settled, and other members have all partitions."""
        from penstock.client import GroupState  # noqa: PLC0415 - grpc only when it is needed

        with open_admin(self._where) as admin:
            seen = admin.describe_group(self._group)
        if seen.state is not GroupState.STABLE:
            return False
        own = self._consumer.core.member_id
        found = any(one.member_id == own and not one.target for one in seen.members)
        if found:
            sys.stderr.write(
                f"penstock: group {self._group} has no partition for this member; see "
                f"`penstock group describe {self._group}`\n"
            )
        return found
