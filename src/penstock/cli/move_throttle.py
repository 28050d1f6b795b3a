"""How fast partitions move: what is set for the cluster, and what counts on each broker."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from penstock.cli import move_plan
from penstock.cli.at_once import logs_at_once, tell_silent
from penstock.cli.options import Output
from penstock.cli.output import format_table, keep_code, print_record
from penstock.cli.usage import WrongUsageError
from penstock.core.limits import COPY_RATE_MAX
from penstock.core.quantities import parse_bytes

if TYPE_CHECKING:
    from penstock.client import Admin, LogDescription, MovesDescription


@dataclass(frozen=True, slots=True)
class Rate:
    """Bytes per second; 0: no limit; None: each broker's own setting."""

    copy_rate: int | None

    def __str__(self) -> str:
        if self.copy_rate is None:
            return "each broker's replica.copy.bytes.per.second"
        return _text(self.copy_rate)


def parse(text: str) -> Rate:
    """`40Mi` or `40MiB`, `none`, `default`. Raises WrongUsageError."""
    if text == "default":
        return Rate(None)
    if text == "none":
        return Rate(0)
    found = parse_bytes(text[:-1] if text.endswith("iB") else text)
    if not found:
        raise WrongUsageError(
            f"{text!r} is no rate: give bytes per second of 1 or more, as 40Mi or 1048576; none "
            "for no limit; default for each broker's own setting"
        )
    if found > COPY_RATE_MAX:
        raise WrongUsageError(
            f"{text!r} is {found} bytes per second, the limit is {COPY_RATE_MAX}; give less, or "
            "none for no limit"
        )
    return Rate(found)


def show(admin: "Admin", output: Output) -> None:
    """What is set, and what each live broker does: it takes a moment to follow.

    Raises typer.Exit with 1 if one does not say.
    """
    moving = admin.describe_moves()
    alive = [broker.broker_id for broker in moving.brokers if broker.alive]
    logs, silent = logs_at_once(admin, sorted(alive))
    with keep_code():
        _print(moving, logs, output)
    if tell_silent(silent):
        raise typer.Exit(1)


def _print(moving: "MovesDescription", logs: "list[LogDescription]", output: Output) -> None:
    if output is not Output.TABLE:
        rows = [{"broker": one.broker_id, "copy_rate": one.copy_rate} for one in logs]
        by = moving.copy_rate_by or ""
        print_record({"copy_rate": moving.copy_rate, "by": by, "brokers": rows}, output)
        return
    by = f", by {moving.copy_rate_by}" if moving.copy_rate_by else ""
    typer.echo(f"set for the cluster: {Rate(moving.copy_rate)}{by}")
    texts = [
        {
            "broker": one.broker_id,
            "rate": "unknown" if one.copy_rate is None else _text(one.copy_rate),
        }
        for one in logs
    ]
    if texts:
        typer.echo(format_table(texts), nl=False)


def _text(rate: int) -> str:
    return f"{move_plan.size(rate)}/s" if rate else "no limit"
