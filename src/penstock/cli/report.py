"""`penstock report`: a support bundle of whatever cluster a command would talk to.

CLUSTER, or an option of Kubernetes ─▶ resources, events, logs, metrics: `kube.report`
a local cluster, or an address      ─▶ processes, logs, metrics, what brokers say: `cluster_report`
"""

import importlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.connect import WANTED
from penstock.cli.kube import commands as kube
from penstock.cli.options import Bootstrap, Output, OutputOption, example
from penstock.cli.output import keep_code, print_rows
from penstock.cli.status import means_kubernetes
from penstock.errors import MisuseError


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(
        epilog=example(
            "penstock report -f cluster.zip",
            "penstock report --bootstrap broker.example.com:9092 -f cluster.zip",
            "kubectl penstock report flights -f flights.zip",
        )
    )(report)


def report(
    cluster: kube.ClusterName = None,
    *,
    file: Annotated[
        Path, typer.Option("--file", "-f", help="Zip file to write; it must not exist.")
    ],
    tail: Annotated[int, typer.Option(min=1, help="Number of last lines of each log.")] = 5_000,
    namespace: kube.Namespace = None,
    context: kube.Context = None,
    kubeconfig: kube.Kubeconfig = None,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write a support bundle: what the cluster says of itself, logs, metrics. No secrets.

    Of a Cluster on Kubernetes also its resources and events, of a local cluster its manifest.
    Records are never in it. Values that look like a secret, token or password are removed; check
    the bundle nevertheless before you pass it on. Exit code 1 if nobody answered: FILE then has
    what else there is.
    """
    from penstock.cli.bundle import ERRORS  # noqa: PLC0415 - not needed for --help

    if file.exists():
        raise MisuseError(f"{file} already exists; name another file")
    given = (cluster, namespace, context, kubeconfig)
    answered = True  # or the API server's error has ended this
    if means_kubernetes(given, bootstrap):
        rows = kube.write_report(given, file, tail)
    else:
        rows, answered = _write(bootstrap, file, tail)
    with keep_code():
        print_rows(rows, output)
        if output is Output.TABLE:
            lacks = any(row["file"] == ERRORS for row in rows)
            rest = f"; {ERRORS} says what could not be collected" if lacks else ""
            typer.echo(f"written to {file}: {len(rows)} files{rest}")
    if not answered:
        sys.stderr.write(f"penstock: the brokers told nothing; {ERRORS} in {file} says why\n")
        raise typer.Exit(1)


def _write(bootstrap: str | None, file: Path, tail: int) -> tuple[list[dict[str, object]], bool]:
    """A row per file in the bundle, and whether a broker has answered."""
    from penstock.cli import bundle, cluster_report  # noqa: PLC0415 - not needed for --help

    wanted = WANTED.get()
    where = wanted.locate(bootstrap)
    if where.local_root is None and bootstrap is None and wanted.profile_of(bootstrap) is None:
        killed = _killed_cluster()
        where = where if killed is None else wanted.in_local(killed)
    errors: list[str] = []
    found = cluster_report.entries(where, where.local_root, tail, errors)
    rows = bundle.write_bundle(file, found, errors)
    return rows, any(row["file"] == cluster_report.ANSWERED for row in rows)


def _killed_cluster() -> Any:
    """The only local cluster there is, which was killed: its logs say why. Its own brokers are
    asked; others may listen where a command looks by default."""
    try:
        registry: Any = importlib.import_module("penstock_broker.local.registry")
    except ModuleNotFoundError:
        return None
    known = registry.known_clusters()
    return known[0] if len(known) == 1 else None
