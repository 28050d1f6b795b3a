"""`penstock cluster …`: the cluster as a whole."""

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.connect import open_admin
from penstock.cli.options import Bootstrap, Output, OutputOption, example
from penstock.cli.output import print_record

if TYPE_CHECKING:
    from penstock.client import ClusterDescription

app = typer.Typer(help="Inspect the cluster, and finalize upgrades.", no_args_is_help=True)


@app.command(epilog=example("penstock cluster describe -o json"))
def describe(*, bootstrap: Bootstrap = None, output: OutputOption = Output.TABLE) -> None:
    """Show brokers, the controller, and what is missing."""
    with open_admin(bootstrap) as admin:
        seen = admin.describe_cluster()
    print_record(to_record(seen), output)


def to_record(seen: "ClusterDescription") -> dict[str, object]:
    """What is shown of it."""
    return {
        "cluster_id": seen.cluster_id,
        "controller_reachable": seen.controller_reachable,
        "controller_epoch": seen.controller_epoch,
        "metadata_version": seen.metadata_version,
        "hibernating": seen.hibernating,
        "topics": seen.topics,
        "partitions": seen.partitions,
        "offline_partitions": seen.offline_partitions,
        "under_replicated_partitions": seen.under_replicated_partitions,
        "under_min_isr_partitions": seen.under_min_isr_partitions,
        "brokers": [
            {
                "broker": broker.broker_id,
                "address": broker.address,
                "rack": broker.rack,
                "alive": broker.alive,
            }
            for broker in seen.brokers
        ],
    }


@app.command(
    epilog=example(
        "penstock cluster finalize --dry-run",
        "penstock cluster finalize",
        "penstock cluster finalize --to 1",
    )
)
def finalize(
    *,
    to: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="FORMAT",
            help="A format instead of the newest; an older one if it is not used.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check only.")] = False,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Store metadata in the newest format: ends an upgrade, and the way back.

    Until then the release before can be started again, and what is new in the format (moves of
    replicas, cordons) is refused. Afterwards releases that do not read it no longer start. Refused
    unless every registered broker runs, and reads it.
    """
    with open_admin(bootstrap) as admin:
        change = admin.finalize(to or 0, validate_only=dry_run)
    record = {"format_before": change.before, "format": change.after, "dry_run": dry_run}
    print_record(record, output)
