"""`penstock quota …`: what principals may take."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.access_rows import quota_row
from penstock.cli.changes import print_change, replace_rules
from penstock.cli.connect import open_admin
from penstock.cli.options import Bootstrap, DryRun, Output, OutputOption, example
from penstock.cli.output import print_rows
from penstock.cli.usage import WrongUsageError, typed
from penstock.core.quantities import parse_bytes
from penstock.core.quotas import Limit, QuotaRule, check_quotas
from penstock.errors import MisuseError

if TYPE_CHECKING:
    from penstock.client import Admin

app = typer.Typer(
    help="Show and change what principals may take. A cluster that asks nobody who they are obeys "
    "no quota.",
    no_args_is_help=True,
)

Principal = Annotated[
    str,
    typer.Argument(
        metavar="PRINCIPAL", help="As serviceaccount:etl/spark; '*': each one without a quota."
    ),
]


def _bytes(text: str) -> int:
    """Parser of options with a number of bytes, written as in manifests."""
    size_bytes = parse_bytes(text)
    if size_bytes is None:
        raise typer.BadParameter(f"it is {text!r}; it must be a number of bytes, as 1048576 or 1Mi")
    return size_bytes


BytesPerSecond = Annotated[
    int | None,
    typer.Option(help="Per broker; 1Mi is 1048576.", parser=_bytes, metavar="BYTES"),
]


@app.command("list", epilog=example("penstock quota list", "penstock quota list -o json"))
def list_(*, bootstrap: Bootstrap = None, output: OutputOption = Output.TABLE) -> None:
    """List quotas."""
    with open_admin(bootstrap) as admin:
        rules = admin.describe_quotas()
    print_rows([quota_row(rule) for rule in rules], output, empty="there are no quotas")


@app.command(
    "set",
    epilog=example(
        "penstock quota set serviceaccount:etl/spark --produce-bytes-per-second 10Mi",
        "penstock quota set '*' --mutations-per-minute 60 --streams 200",
    ),
)
def set_(
    principal: Principal,
    *,
    produce_bytes_per_second: BytesPerSecond = None,
    fetch_bytes_per_second: BytesPerSecond = None,
    request_millis_per_second: Annotated[
        int | None, typer.Option(help="Time of unary calls, per broker.")
    ] = None,
    mutations_per_minute: Annotated[
        int | None, typer.Option(help="Partitions created or deleted, and other changes.")
    ] = None,
    streams: Annotated[int | None, typer.Option(help="Open at one time, per broker.")] = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give a principal a quota of their own; it replaces the one they have."""
    given = {
        Limit.PRODUCE: produce_bytes_per_second,
        Limit.FETCH: fetch_bytes_per_second,
        Limit.REQUEST: request_millis_per_second,
        Limit.MUTATIONS: mutations_per_minute,
        Limit.STREAMS: streams,
    }
    limits = {limit: value for limit, value in given.items() if value is not None}
    if not limits or any(value < 1 for value in limits.values()):
        raise WrongUsageError(
            "give at least one limit, of 1 or more; to lift a quota, use penstock quota remove"
        )
    rule = QuotaRule((principal,), limits)
    with typed():
        check_quotas([rule])
    with open_admin(bootstrap) as admin:
        after = _change(admin, lambda old: (*_without(old, principal), rule), dry_run=dry_run)
    said = f"{principal} could have this quota" if dry_run else f"{principal} has this quota"
    _print(said, after, output, dry_run=dry_run)


@app.command(epilog=example("penstock quota remove serviceaccount:etl/spark"))
def remove(
    principal: Principal,
    *,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Take a principal's own quota away; the one of '*' is theirs then."""

    def less(before: tuple[QuotaRule, ...]) -> tuple[QuotaRule, ...]:
        after = _without(before, principal)
        if after == before:
            raise MisuseError(f"no quota names {principal}; see penstock quota list")
        return after

    with open_admin(bootstrap) as admin:
        after = _change(admin, less, dry_run=dry_run)
    verb = "would have" if dry_run else "has"
    _print(f"{principal} {verb} no quota of their own", after, output, dry_run=dry_run)


def _without(rules: tuple[QuotaRule, ...], principal: str) -> tuple[QuotaRule, ...]:
    found = []
    for rule in rules:
        others = tuple(name for name in rule.principals if name != principal)
        if others:
            found.append(QuotaRule(others, rule.limits))
    return tuple(found)


def _change(
    admin: "Admin",
    changed: Callable[[tuple[QuotaRule, ...]], tuple[QuotaRule, ...]],
    *,
    dry_run: bool,
) -> tuple[QuotaRule, ...]:
    """Returns the quotas as they are then, or with `dry_run` would be."""
    return replace_rules(
        admin.describe_quotas,
        changed,
        lambda after, before: admin.alter_quotas(after, validate_only=dry_run, expected=before),
    )


def _print(said: str, rules: tuple[QuotaRule, ...], output: Output, *, dry_run: bool) -> None:
    print_change(said, {"quotas": [quota_row(rule) for rule in rules]}, output, dry_run=dry_run)
