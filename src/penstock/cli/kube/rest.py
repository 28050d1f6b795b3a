"""`kubectl penstock hibernate | wake`: the command line; `hibernate` has what it does."""

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.kube.choice import KubeChoice
from penstock.cli.kube.commands import (
    Context,
    Kubeconfig,
    NamedCluster,
    Namespace,
    module_of,
    open_api,
)
from penstock.cli.options import DryRun, Output, OutputOption, example
from penstock.cli.output import print_document

if TYPE_CHECKING:
    from penstock.kubernetes.api import Api

Wait = Annotated[bool, typer.Option("--wait", help="Until it is done.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    for command in (hibernate, wake):
        name = command.__name__
        lines = (f"penstock {name} flights --wait", f"kubectl penstock {name} flights --dry-run")
        app.command(epilog=example(*lines))(command)


def hibernate(
    cluster: NamedCluster,
    *,
    wait: Wait = False,
    dry_run: DryRun = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Put a Cluster to sleep: no pod runs, the volumes stay.

    Writes are refused at first; once every record is fsynced on all replicas, brokers and
    controllers stop. If that takes more than five minutes, it stays awake and says why.

    Time counts while it sleeps: at the wake, what is older than retention.ms is removed, and so are
    offsets of groups without members after offsets.retention.minutes and transactional ids after
    transactional.id.expiration.ms. Raise them before a long sleep.
    """
    where = open_api(namespace, context, kubeconfig)
    _change_rest(where, cluster, output, hibernates=True, wait=wait, dry_run=dry_run)


def wake(
    cluster: NamedCluster,
    *,
    wait: Wait = False,
    dry_run: DryRun = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Wake a Cluster that was put to sleep: with all that it had, and what the spec has changed."""
    where = open_api(namespace, context, kubeconfig)
    _change_rest(where, cluster, output, hibernates=False, wait=wait, dry_run=dry_run)


def _change_rest(
    where: tuple["Api", KubeChoice],
    cluster: str,
    output: Output,
    *,
    hibernates: bool,
    wait: bool,
    dry_run: bool,
) -> None:
    api, choice = where
    module = module_of("hibernate")
    found = module_of("snapshot").choose_changeable(api, cluster, choice.namespace)
    asked = module.change(api, found, hibernate=hibernates, dry_run=dry_run)
    shows = output is Output.TABLE
    if wait and not dry_run:
        asked = module.wait(api, found, asked, typer.echo if shows else lambda _: None)
    if not shows:
        print_document(asked, output)
        return
    verb = "would be" if dry_run else "is"
    what = "put to sleep" if hibernates else "woken"
    state = f"; it is {asked['state']}" if wait or not asked["changed"] else ""
    typer.echo(f"Cluster {asked['cluster']} {verb} {what}{state}")
    if not (wait or dry_run):
        typer.echo(f"to see how far it is: `kubectl penstock why {cluster}`")
