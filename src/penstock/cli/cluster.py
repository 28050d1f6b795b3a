"""`penstock cluster …`: the cluster as a whole."""

import typer

from penstock.cli.connect import open_admin
from penstock.cli.options import Bootstrap, Output, OutputOption, example
from penstock.cli.output import print_record

app = typer.Typer(help="Inspect the cluster.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keeps `describe` a sub-command while it is the only one."""


@app.command(epilog=example("penstock cluster describe -o json"))
def describe(*, bootstrap: Bootstrap = None, output: OutputOption = Output.TABLE) -> None:
    """Show brokers, the controller, and what is missing."""
    with open_admin(bootstrap) as admin:
        seen = admin.describe_cluster()
    record = {
        "cluster_id": seen.cluster_id,
        "controller_reachable": seen.controller_reachable,
        "controller_epoch": seen.controller_epoch,
        "metadata_version": seen.metadata_version,
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
    print_record(record, output)
