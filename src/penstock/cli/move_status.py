"""Moves that have not ended, as people and programs see them: how far, how fast, how long yet.

What no leader has said is unknown, and never shown as 0: its release may be older.
"""

from typing import TYPE_CHECKING

import typer

from penstock.cli import move_plan
from penstock.cli.options import Output
from penstock.cli.output import format_table, print_record
from penstock.client.admin.receiving import receiving, seconds_left

if TYPE_CHECKING:
    from penstock.client import MoveDescription, MovesDescription

_NOTHING = "nothing moves"


def show(seen: "MovesDescription", output: Output) -> None:
    """Prints it once."""
    if output is Output.TABLE:
        typer.echo(table(seen))
        return
    rows = [_record(one) for one in seen.moves]
    print_record({"paused": seen.paused, "moves": rows}, output)


def table(seen: "MovesDescription") -> str:
    """A row per partition, and one line for all of them."""
    if not seen.moves:
        return _NOTHING
    return f"{format_table([_row(one) for one in seen.moves])}\n{summary(seen)}"


def _begun(one: "MoveDescription") -> dict[str, object]:
    """What is the same for people and programs, with which both begin."""
    return {
        "partition": str(one.where),
        "state": one.state.value,
        "reason": one.reason.value if one.reason else None,
        "replicas": list(one.replicas),
        "target": list(one.target),
    }


def _record(one: "MoveDescription") -> dict[str, object]:
    return {
        **_begun(one),
        "bytes_left": one.bytes_left,
        "bytes_per_second": _pace(one),
        "seconds_left": one.seconds_left,
        "copies": [
            {
                "broker": copy.broker_id,
                "bytes_left": copy.bytes_left,
                "bytes_per_second": copy.bytes_per_second,
                "seconds_left": copy.seconds_left,
                "limited_by": copy.limited_by or None,
                "known_for_ms": copy.known_for_ms,
                "stalled_for_ms": copy.stalled_for_ms,
            }
            for copy in one.copies
        ],
        "dropping": list(one.dropping),
        "damaged": list(one.damaged),
        "waiting_for": one.waiting_for or None,
    }


def _row(one: "MoveDescription") -> dict[str, object]:
    left, pace, seconds = one.bytes_left, _pace(one), one.seconds_left
    limits = dict.fromkeys(copy.limited_by for copy in one.copies if copy.limited_by)
    unknown = "unknown" if one.adding else None
    return {
        **_begun(one),
        "left": unknown if left is None else move_plan.size(left),
        "rate": unknown if pace is None else f"{move_plan.size(pace)}/s",
        "time_left": unknown if seconds is None else move_plan.duration(-(-seconds // 60)),
        "dropping": list(one.dropping),
        "damaged": list(one.damaged),
        "waiting_for": one.waiting_for or "; ".join(limits) or None,
    }


def _pace(one: "MoveDescription") -> int | None:
    """Of all its copies; None: unknown."""
    if one.bytes_left is None:
        return None
    return sum(copy.bytes_per_second for copy in one.copies)


def summary(seen: "MovesDescription") -> str:
    """One line about all moves: `3 copying, 9 queued, 3.2 GiB left at 38 MiB/s, about 2 min`.

    Bytes of queued moves are not in it: they are known once copying has begun. The time is that of
    the broker with most left for its rate.
    """
    parts = []
    for state in ("copying", "queued"):
        count = sum(one.state.value == state for one in seen.moves)
        if count:
            parts.append(f"{count} {state}")
    left = sum(copy.bytes_left for one in seen.moves for copy in one.copies)
    rate = sum(copy.bytes_per_second for one in seen.moves for copy in one.copies)
    seconds = seconds_left(receiving(seen.moves, {}).values())
    if seconds is not None:
        parts.append(
            f"{move_plan.size(left)} left at {move_plan.size(rate)}/s, "
            f"{move_plan.duration(-(-seconds // 60))}"
        )
    elif left:
        parts.append(f"{move_plan.size(left)} left, nothing copied now")
    unknown = sum(bool(one.adding) and one.bytes_left is None for one in seen.moves)
    if unknown:
        parts.append(f"{unknown} of unknown size")
    dropping = sum(bool(one.dropping) for one in seen.moves)
    if dropping:
        parts.append(f"{dropping} with former copies to delete")
    if seen.paused and parts:
        parts.append("paused: the metadata store is unavailable")
    return ", ".join(parts) or _NOTHING
