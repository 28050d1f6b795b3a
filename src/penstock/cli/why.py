"""`penstock why`: what is wrong with the cluster that a command would talk to, and what to do.

CLUSTER, topic/NAME, or an option of Kubernetes ─▶ that Cluster, seen through Kubernetes
otherwise the rules of `connect`                ─▶ what the brokers say: the console's first lines
"""

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.connect import WANTED, Located
from penstock.cli.kube import commands as kube
from penstock.cli.options import Bootstrap, Output, OutputOption, example
from penstock.cli.output import keep_code, print_document
from penstock.cli.status import NO_CLUSTER, is_named, means_kubernetes
from penstock.cli.top import draw_explanation
from penstock.errors import UnreachableError

if TYPE_CHECKING:
    from penstock.views.overview import ClusterAnswers, Explanation


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(
        epilog=example(
            "penstock why",
            "penstock why --bootstrap broker.example.com:9092 -o json",
            "penstock why flights",
            "kubectl penstock why topic/flights",
        )
    )(why)


def why(
    thing: Annotated[
        str | None,
        typer.Argument(
            metavar="[CLUSTER | topic/NAME]",
            help="On Kubernetes; without it there, the only Cluster.",
        ),
    ] = None,
    *,
    namespace: kube.Namespace = None,
    context: kube.Context = None,
    kubeconfig: kube.Kubeconfig = None,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Explain what is wrong or waited for, since when, why, and what to do.

    Of a local cluster, the one at an address, or a Cluster or Topic on Kubernetes. Exit code 1 if
    clients cannot write or read: partitions without a leader or without enough in-sync replicas,
    transactions that block readers. On Kubernetes also if it is not Ready.
    """
    wanted = WANTED.get()
    given = (thing, namespace, context, kubeconfig)
    if means_kubernetes(given, bootstrap):
        kube.show_why(*given, output)
        return
    import asyncio  # noqa: PLC0415 - not needed for --help

    from penstock.views.overview import explain  # noqa: PLC0415 - with the reader

    where = wanted.locate(bootstrap)
    seen = asyncio.run(_ask(where))
    unanswered = seen.cluster.value is None and not seen.cluster.refused
    if unanswered and where.local_root is None and not is_named(wanted, bootstrap):
        raise UnreachableError(NO_CLUSTER)
    found = explain(seen)
    with keep_code():
        _print(where, found, output)
    if found.tone == "bad":
        raise typer.Exit(1)


def _print(where: Located, found: "Explanation", output: Output) -> None:
    if output is not Output.TABLE:
        print_document({"bootstrap": where.bootstrap, **found.to_dict()}, output)
        return
    from penstock.cli.kube.picture import make_console  # noqa: PLC0415 - rich only when needed

    console = make_console()
    for line in draw_explanation(found):
        console.print(line)


async def _ask(where: Located) -> "ClusterAnswers":
    from penstock.ui.reader import Reader  # noqa: PLC0415 - grpc only when it is needed

    reader = Reader(where.bootstrap, **where.options)
    try:
        return await reader.overview()
    finally:
        await reader.close()
