"""`penstock status`: how the cluster is that a command would talk to, wherever it runs.

CLUSTER, or an option of Kubernetes ─▶ that Cluster, seen through Kubernetes
otherwise the rules of `connect`    ─▶ a local cluster: its processes
                                       an address: what its brokers say
                                       the only Cluster of the kubeconfig's context
"""

from typing import Final

import typer

from penstock.cli import local
from penstock.cli.at_once import describe_soon, logs_at_once
from penstock.cli.cluster import to_record
from penstock.cli.connect import (
    DEFAULT_BOOTSTRAP,
    WANTED,
    Located,
    Wanted,
    open_admin,
)
from penstock.cli.kube import commands as kube
from penstock.cli.kube.choice import KubeChoice
from penstock.cli.options import Bootstrap, Output, OutputOption, example
from penstock.cli.output import keep_code, print_record
from penstock.cli.usage import WrongUsageError
from penstock.errors import UnreachableError

NO_CLUSTER: Final = (
    f"there is no cluster to show: no local one is running, nobody answers on {DEFAULT_BOOTSTRAP}, "
    "and no kubeconfig shows one; start one with `penstock local up`, or name one with --bootstrap"
)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(
        epilog=example(
            "penstock status",
            "penstock status --bootstrap broker.example.com:9092 -o json",
            "penstock status flights",
            "kubectl penstock status flights -n prod -o json",
        )
    )(status)


def status(
    cluster: kube.ClusterName = None,
    *,
    namespace: kube.Namespace = None,
    context: kube.Context = None,
    kubeconfig: kube.Kubeconfig = None,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show how a cluster is: a local one, the one at an address, or a Cluster on Kubernetes.

    Exit code 1 if it is not healthy: a process or broker is down or does not answer, partitions
    lack replicas or a leader, or a broker refuses writes because its disk is full or the cluster
    hibernates. Of a Cluster on Kubernetes, if it is not Ready, or no broker pod is.
    """
    wanted = WANTED.get()
    given = (cluster, namespace, context, kubeconfig)
    if means_kubernetes(given, bootstrap):
        kube.show_status(*given, output)
        return
    where = wanted.locate(bootstrap)
    if where.local_root is not None:
        healthy = local.show_status(where.local_root, output)
    else:
        healthy = _show(where, output, named=is_named(wanted, bootstrap))
    if not healthy:
        raise typer.Exit(1)


def means_kubernetes(given: kube.Choice, bootstrap: str | None) -> bool:
    """Whether a command that is for all kinds of clusters means one on Kubernetes. `given`: its
    options about one. Raises WrongUsageError."""
    wanted = WANTED.get()
    if given[0] is not None and ":" in given[0]:
        raise WrongUsageError(f"CLUSTER is {given[0]!r}, an address: give it by --bootstrap")
    if wanted.is_typed and any(given):
        raise WrongUsageError("give CLUSTER and options of Kubernetes, or --bootstrap, not both")
    on_kubernetes = any(given) or (
        not wanted.is_typed and (wanted.is_plugin or wanted.choice != KubeChoice())
    )
    return on_kubernetes or wanted.means_kubernetes(bootstrap)


def is_named(wanted: Wanted, bootstrap: str | None) -> bool:
    """The user has said which cluster, by an address or a profile."""
    return bootstrap is not None or wanted.profile_of(bootstrap) is not None


def _show(where: Located, output: Output, *, named: bool) -> bool:
    """Whether it is healthy."""
    try:
        with open_admin(where, only_look=True) as admin:
            seen = describe_soon(admin)
            alive = [one.broker_id for one in seen.brokers if one.alive]
            logs, silent = logs_at_once(admin, alive)
    except UnreachableError as error:
        if named:
            raise
        raise UnreachableError(NO_CLUSTER) from error
    full = [one.broker_id for one in logs if one.disk_is_full]
    healthy = (
        seen.controller_reachable
        and all(broker.alive for broker in seen.brokers)
        and not seen.offline_partitions
        and not seen.under_replicated_partitions
        and not seen.hibernating
        and not full
        and not silent
    )
    known = {"bootstrap": where.bootstrap, "healthy": healthy, "full_disks": full}
    unknown = [{"broker": one, "problem": why} for one, why in silent.items()]
    with keep_code():
        print_record({**known, **to_record(seen), "unknown_disks": unknown}, output)
    return healthy
