"""`penstock partitions …`: where replicas are, and where they should be.

plan ── facts from the cluster ─▶ core.balance ─▶ shown, or written with -o json
"""

from dataclasses import dataclass
from typing import Annotated

import typer

from penstock.cli import move_plan
from penstock.cli.connect import open_admin
from penstock.cli.move_facts import ClusterFacts, read_facts
from penstock.cli.options import COUNT_MAX, Bootstrap, Output, OutputOption, example
from penstock.core import balance as core
from penstock.core.types import BrokerId
from penstock.errors import ErrorCode, MisuseError

app = typer.Typer(help="Plan and carry out moves of replicas.", no_args_is_help=True)


@dataclass(frozen=True, slots=True)
class Brokers:
    """Ids of brokers, as an option names them."""

    ids: tuple[BrokerId, ...]


def parse_brokers(text: str) -> Brokers:
    """Parser of options that name brokers."""
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and int(part) <= COUNT_MAX for part in parts):
        raise typer.BadParameter(f"it is {text!r}; it must be ids of brokers, as 3 or 4,5")
    ids = tuple(BrokerId(int(part)) for part in parts)
    if len(set(ids)) != len(ids):
        raise typer.BadParameter(f"it is {text!r}; it names a broker twice")
    return Brokers(ids)


Drain = Annotated[
    Brokers | None,
    typer.Option("--drain", parser=parse_brokers, metavar="ID[,ID…]", help="Empty these brokers."),
]
Onto = Annotated[
    Brokers | None,
    typer.Option(
        "--onto", parser=parse_brokers, metavar="ID[,ID…]", help="Give these brokers their share."
    ),
]
Topic = Annotated[
    str | None, typer.Option("--topic", metavar="TOPIC", help="With --replicas: of this topic.")
]
Replicas = Annotated[
    int | None,
    typer.Option("--replicas", "-r", min=1, max=COUNT_MAX, help="The new replication factor."),
]
Balance = Annotated[
    bool, typer.Option("--balance", help="Spread replicas, bytes and leaders over all brokers.")
]


@app.callback()
def _group() -> None:
    """Keeps `plan` a sub-command while it is the only one."""


@app.command(
    epilog=example(
        "penstock partitions plan --drain 3",
        "penstock partitions plan --onto 4,5 -o json > plan.json",
        "penstock partitions plan --topic flights --replicas 3",
        "penstock partitions plan --balance",
    )
)
def plan(
    *,
    drain: Drain = None,
    onto: Onto = None,
    topic: Topic = None,
    replicas: Replicas = None,
    balance: Balance = False,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show which replicas would move, what that copies, and how long it takes. Changes nothing."""
    wish = _wish(drain, onto, (topic, replicas), balance=balance)
    with open_admin(bootstrap) as admin:
        seen = read_facts(admin)
    made = make_plan(seen, wish)
    move_plan.show(made, seen.topic_ids, output, seen.facts.copy_rate)


def _wish(
    drain: Brokers | None,
    onto: Brokers | None,
    factor: tuple[str | None, int | None],
    *,
    balance: bool,
) -> core.Wish:
    topic, replicas = factor
    if (topic is None) != (replicas is None):
        raise MisuseError("--topic and --replicas go together", ErrorCode.INVALID_REQUEST)
    wishes: list[core.Wish] = []
    if drain is not None:
        wishes.append(core.Drain(drain.ids))
    if onto is not None:
        wishes.append(core.Spread(onto.ids))
    if topic is not None and replicas is not None:
        wishes.append(core.Factor(topic, replicas))
    if balance:
        wishes.append(core.Balance())
    if len(wishes) != 1:
        raise MisuseError(
            "give one of --drain, --onto, --topic with --replicas, --balance",
            ErrorCode.INVALID_REQUEST,
        )
    return wishes[0]


def make_plan(seen: ClusterFacts, wish: core.Wish) -> core.Plan:
    """The plan. Raises MisuseError with the numbers if there can be none."""
    made = core.plan(seen.facts, wish)
    if isinstance(made, core.Infeasible):
        raise MisuseError(f"nothing can be moved: {made.reason}", ErrorCode.INVALID_REQUEST)
    return made
