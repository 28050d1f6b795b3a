"""A plan as people and programs see it, and back from the file that `-o json` wrote.

The file names topics by id as well as by name, and its own id is the hash of its moves: what was
approved is what is submitted, for the topics that it was made for.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import typer

from penstock.cli.options import Output
from penstock.cli.output import format_table, print_document
from penstock.core.balance import Move, Plan
from penstock.core.balance.plan import plan_id
from penstock.core.types import BrokerId, MoveReason, TopicPartition
from penstock.errors import ErrorCode, MisuseError

_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """What a file says shall move."""

    id: str
    reason: MoveReason
    moves: tuple[Move, ...]
    topic_ids: Mapping[str, str]


def size(count: int) -> str:
    """Bytes for people: 3.2 GiB, 512 KiB, 17 B."""
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:.1f}".removesuffix(".0") + f" {name}"
    return f"{count} B"


def duration(minutes: int) -> str:
    """How long copies take, rounded up to minutes, for people."""
    return f"about {minutes} min" if minutes > 1 else "less than a minute"


def show(plan: Plan, topic_ids: Mapping[str, str], output: Output, rate: int) -> None:
    """Prints the plan: its moves, what it does to the brokers, and one line that sums it up."""
    if output is not Output.TABLE:
        print_document(document(plan, topic_ids), output)
        return
    if not plan.moves:
        typer.echo("nothing to move")
        return
    typer.echo(format_table([_move_row(move) for move in plan.moves]))
    changed = [
        {
            "broker": one.broker,
            "replicas": _change(str(one.replicas[0]), str(one.replicas[1])),
            "bytes": _change(size(one.held_bytes[0]), size(one.held_bytes[1])),
            "leaders": _change(str(one.leaders[0]), str(one.leaders[1])),
            "copies_in": size(one.in_bytes),
            "copies_out": size(one.out_bytes),
        }
        for one in plan.brokers
    ]
    typer.echo(format_table(changed))
    typer.echo(summary(plan, rate))


def summary(plan: Plan, rate: int) -> str:
    """One line: how many moves, how much, how long."""
    moves = _counted(plan.moves)
    leaders = f"{plan.leaders_moved} preferred leaders change"
    if not plan.copied_bytes or plan.minutes is None:
        return f"plan {plan.id}: {moves}, {size(plan.copied_bytes)} to copy; {leaders}"
    return (
        f"plan {plan.id}: {moves}, {size(plan.copied_bytes)} to copy, {duration(plan.minutes)} "
        f"at {size(rate)}/s per broker; {leaders}"
    )


def show_saved(saved: SavedPlan) -> None:
    """The same of a plan from its file, or of a partition that is moved by hand: its moves, and
    one line that sums them up. What it does to the brokers was shown when it was made."""
    typer.echo(format_table([_move_row(move) for move in saved.moves]))
    copied = sum(move.copied_bytes for move in saved.moves)
    changed = sum(move.target[:1] != move.expected[:1] for move in saved.moves)
    name = f"plan {saved.id}: " if saved.id else ""
    moves = _counted(saved.moves)
    typer.echo(f"{name}{moves}, {size(copied)} to copy; {changed} preferred leaders change")


def _counted(moves: Collection[Move]) -> str:
    return f"{len(moves)} move" + ("s" if len(moves) != 1 else "")


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"


def _move_row(move: Move) -> dict[str, object]:
    return {
        "partition": str(move.partition),
        "from": list(move.expected),
        "to": list(move.target),
        "copies": size(move.copied_bytes) if move.adding else None,
    }


def document(plan: Plan, topic_ids: Mapping[str, str]) -> dict[str, object]:
    """What programs get, and what `move --plan` reads."""
    return {
        "id": plan.id,
        "reason": plan.reason.value,
        "copied_bytes": plan.copied_bytes,
        "minutes": plan.minutes,
        "leaders_moved": plan.leaders_moved,
        "score": {"before": asdict(plan.before), "after": asdict(plan.after)},
        "moves": [
            {
                "topic": move.partition.topic,
                "topic_id": topic_ids[move.partition.topic],
                "partition": move.partition.partition,
                "expected": list(move.expected),
                "target": list(move.target),
                "copied_bytes": move.copied_bytes,
            }
            for move in plan.moves
        ],
        "brokers": [
            {
                "broker": one.broker,
                "in_bytes": one.in_bytes,
                "out_bytes": one.out_bytes,
                "replicas": list(one.replicas),
                "held_bytes": list(one.held_bytes),
                "leaders": list(one.leaders),
            }
            for one in plan.brokers
        ],
    }


def load(path: Path) -> SavedPlan:
    """Reads what `penstock partitions plan -o json` wrote.

    Raises MisuseError if it is something else, or was changed since; OSError if it is not readable.
    """
    try:
        saved = _parse(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, KeyError) as error:
        raise MisuseError(
            f"{path} is not a plan ({type(error).__name__}: {error}); write one with "
            "penstock partitions plan -o json > FILE",
            ErrorCode.INVALID_REQUEST,
        ) from error
    made = plan_id(saved.reason, saved.moves)
    if made != saved.id:
        raise MisuseError(
            f"{path} was changed: it says plan {saved.id}, and its moves make {made}; plan again, "
            "or move single partitions with penstock partitions move TOPIC/PARTITION --to",
            ErrorCode.INVALID_REQUEST,
        )
    return saved


def _parse(found: object) -> SavedPlan:
    if not isinstance(found, dict):
        raise TypeError("not an object")
    moves = [_parse_move(one) for one in found["moves"]]
    ids = {one["topic"]: str(one["topic_id"]) for one in found["moves"]}
    return SavedPlan(str(found["id"]), MoveReason(found["reason"]), tuple(moves), ids)


def _parse_move(one: dict[str, object]) -> Move:
    return Move(
        partition=TopicPartition(str(one["topic"]), _number(one["partition"])),
        expected=_brokers(one["expected"]),
        target=_brokers(one["target"]),
        copied_bytes=_number(one["copied_bytes"]),
    )


def _brokers(found: object) -> tuple[BrokerId, ...]:
    if not isinstance(found, list):
        raise TypeError(f"{found!r} is not a list of brokers")
    return tuple(BrokerId(_number(one)) for one in found)


def _number(found: object) -> int:
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise TypeError(f"{found!r} is not a number of 0 or more")
    return found
