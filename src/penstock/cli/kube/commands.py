"""`kubectl penstock access | pause | …`: a Cluster seen through Kubernetes.

Only the command line is here: `snapshot` reads, `status` and `why` judge, `picture` draws. The same
commands are available as `penstock access …`; `status` and `why`, which know other clusters too,
begin in modules of their own. The other commands of `penstock` (topics, produce, consume, …) also
work on a Cluster: see `connect`.
"""

import importlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.changes import check_output, confirm, print_change
from penstock.cli.connect import WANTED
from penstock.cli.kube.choice import KubeChoice, connect
from penstock.cli.options import DryRun, Output, OutputOption, Yes, example, given_not_empty
from penstock.cli.output import keep_code, print_document, print_record
from penstock.cli.usage import WrongUsageError
from penstock.errors import MisuseError
from penstock.kubernetes.names import PAUSED
from penstock.kubernetes.resources import path_of

if TYPE_CHECKING:
    from penstock.kubernetes.api import Api

Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace", "-n", help="Namespace of the Cluster; without it, the context's namespace."
    ),
]
Context = Annotated[
    str | None,
    typer.Option("--context", help="Context of the kubeconfig; without it, the current one."),
]
Kubeconfig = Annotated[
    str | None,
    typer.Option(
        "--kubeconfig", help="Kubeconfig file; without it, $KUBECONFIG or ~/.kube/config."
    ),
]
ClusterName = Annotated[
    str | None,
    typer.Argument(
        metavar="[CLUSTER]",
        help="NAME or NS/NAME; without it, the only Cluster.",
        callback=given_not_empty,
    ),
]
Choice = tuple[str | None, str | None, str | None, str | None]
"""CLUSTER, namespace, context and kubeconfig, as they were given."""
NamedCluster = Annotated[str, typer.Argument(metavar="CLUSTER", help="NAME or NS/NAME.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    for command, lines in (
        (access, ("penstock access flights", "kubectl penstock access flights -o yaml")),
        (pause, ("penstock pause flights", "kubectl penstock pause flights --dry-run")),
        (resume, ("penstock resume flights",)),
        (upgrade, ("penstock upgrade flights --dry-run", "kubectl penstock upgrade flights")),
        (approve, ("penstock approve flights --dry-run", "kubectl penstock approve flights")),
        (
            drain,
            (
                "penstock drain flights --node worker-2",
                "kubectl penstock drain flights --broker 1 --data --dry-run",
                "kubectl penstock drain flights --broker 1 --data --yes",
                "kubectl penstock drain flights --broker 1 --cancel --dry-run",
                "kubectl penstock drain flights --broker 1 --cancel",
            ),
        ),
        (rotate_ca, ("penstock rotate-ca flights --dry-run", "kubectl penstock rotate-ca flights")),
    ):
        app.command(epilog=example(*lines))(command)


def show_status(
    cluster: str | None,
    namespace: str | None,
    context: str | None,
    kubeconfig: str | None,
    output: Output,
) -> None:
    """Prints conditions, brokers, partitions, topics, controllers, storage and events of a Cluster.

    Raises typer.Exit with 1 if it is not Ready.
    """
    api, choice = open_api(namespace, context, kubeconfig)
    found = _snapshot(api, choice, cluster)
    seen = module_of("status").describe(found)
    with keep_code():
        if output is Output.TABLE:
            picture = module_of("picture")
            picture.show_status(seen, picture.make_console())
        else:
            print_document(seen, output)
    if not seen["ready"]:
        raise typer.Exit(1)


def show_why(
    thing: str | None,
    namespace: str | None,
    context: str | None,
    kubeconfig: str | None,
    output: Output,
) -> None:
    """Prints why a Cluster, or `topic/NAME`, is as it is.

    Raises typer.Exit with 1 if it is not Ready, or if clients cannot write or read.
    """
    api, choice = open_api(namespace, context, kubeconfig)
    judge = module_of("why")
    if thing is not None and thing.startswith("topic/"):
        topic = _find_topic(api, choice, thing.removeprefix("topic/"))
        module = module_of("snapshot")
        found = module.take_snapshot(api, module.cluster_of(api, topic))
        explanation = judge.explain_topic(_asked(api, found), topic)
    else:
        explanation = judge.explain(_asked(api, _snapshot(api, choice, thing)))
    with keep_code():
        if output is Output.TABLE:
            picture = module_of("picture")
            picture.show_explanation(explanation, picture.make_console())
        else:
            print_document(explanation.to_dict(), output)
    if not explanation.served:
        raise typer.Exit(1)


def access(
    cluster: ClusterName = None,
    *,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show how to get into a Cluster, who may do what there, and what a pod needs for it.

    The rules and quotas are those in force, from manifests and from `penstock acl` and `quota`.
    """
    api, choice = open_api(namespace, context, kubeconfig)
    module = module_of("access")
    seen = module.describe(_snapshot(api, choice, cluster))
    print_record(seen, output)
    if output is not Output.TABLE:
        return
    if seen["asks_who_calls"]:
        typer.echo("\nWhat a pod needs, besides a rule for its ServiceAccount:\n")
        print_document(module.volume(seen), Output.YAML)
    else:
        typer.echo("\nThis Cluster asks nobody who they are: rules and quotas are not obeyed.")


def pause(
    cluster: NamedCluster,
    *,
    dry_run: DryRun = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Stop the operator from changing a Cluster until it is resumed.

    Brokers keep serving, and leaders are elected; only the operator pauses.
    """
    api, choice = open_api(namespace, context, kubeconfig)
    name = _annotate(api, choice, cluster, "true", dry_run=dry_run)
    said = f"Cluster {name} is paused; to resume it: `kubectl penstock resume {cluster}`"
    if dry_run:
        said = f"Cluster {name} could be paused"
    print_change(said, {"cluster": name, "paused": True}, output, dry_run=dry_run)


def resume(
    cluster: NamedCluster,
    *,
    dry_run: DryRun = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let the operator manage a Cluster again."""
    api, choice = open_api(namespace, context, kubeconfig)
    name = _annotate(api, choice, cluster, None, dry_run=dry_run)
    said = f"Cluster {name} could be resumed" if dry_run else f"Cluster {name} is resumed"
    print_change(said, {"cluster": name, "paused": False}, output, dry_run=dry_run)


def write_report(given: Choice, file: Path, tail: int) -> list[dict[str, object]]:
    """Writes the support bundle of a Cluster; a row per file in it."""
    cluster, *options = given
    api, choice = open_api(*options)
    found = _snapshot(api, choice, cluster)
    rows: list[dict[str, object]] = module_of("report").write_report(api, found, file, tail)
    return rows


def upgrade(
    cluster: NamedCluster,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan only.")] = False,
    yes: Yes = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give the pods of a Cluster the image and template of the operator that runs now.

    Shows what would change, and asks. An upgrade of the operator alone restarts nothing.
    """
    check_output(output, yes=yes, dry_run=dry_run)
    api, choice = open_api(namespace, context, kubeconfig)
    found = module_of("snapshot").choose_changeable(api, cluster, choice.namespace)
    plan = module_of("upgrade").plan_of(found)
    approves = bool(plan["plan"]) and not dry_run
    if output is Output.TABLE:
        typer.echo(module_of("upgrade").upgrade_text(plan))
    if approves:
        confirm(f"Carry out plan {plan['plan']}?", yes=yes)
        module_of("upgrade").approve(api, found, plan["plan"])
    if output is not Output.TABLE:
        print_document({**plan, "approved": approves}, output)
    elif approves:
        typer.echo(f"approved; to see how far it is: `kubectl penstock why {cluster}`")


def approve(
    cluster: NamedCluster,
    plan_id: Annotated[
        str | None,
        typer.Argument(metavar="[PLAN]", help="Its id; without it, the plan that waits now."),
    ] = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan only.")] = False,
    yes: Yes = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let replicas move to new brokers, with spec.balance.mode Manual.

    Shows the plan, and asks. Exit code 1 if none waits.
    """
    check_output(output, yes=yes, dry_run=dry_run)
    api, choice = open_api(namespace, context, kubeconfig)
    found = module_of("snapshot").choose_changeable(api, cluster, choice.namespace)
    plan = module_of("upgrade").spread_of(found, plan_id)
    waits = bool(plan["plan"]) and not plan["automatic"]
    if output is Output.TABLE:
        typer.echo(module_of("upgrade").spread_text(plan))
    if waits and not dry_run:
        confirm(f"Carry out plan {plan['plan']}?", yes=yes)
        module_of("upgrade").approve(api, found, plan["plan"])
    if output is not Output.TABLE:
        print_document({**plan, "approved": waits and not dry_run}, output)
    elif waits and not dry_run:
        typer.echo(f"approved; to see how far it is: `kubectl penstock why {cluster}`")
    if not waits:
        raise typer.Exit(1)


def drain(
    cluster: NamedCluster,
    *,
    node: Annotated[
        str | None, typer.Option("--node", help="All brokers that run on this node.")
    ] = None,
    broker: Annotated[
        list[int] | None, typer.Option("--broker", min=0, help="This broker; may be repeated.")
    ] = None,
    data: Annotated[
        bool, typer.Option("--data", help="Move all that they hold, not only leaderships.")
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Take a drain back; what has moved stays there.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Move leaderships off brokers before their node goes, and keep them off until --cancel.

    Ends when they lead only what nobody else can. Exit code 1 if others still could. With --data
    all that the brokers hold moves to others, which takes its time: the plan is shown, you are
    asked, and it does not wait for the end.
    """
    if (node is None) == (not broker):
        raise WrongUsageError("give --node or --broker, one of them")
    if cancel and data:
        raise WrongUsageError("--cancel does not go with --data")
    check_output(output, yes=yes or not data, dry_run=dry_run)
    api, choice = open_api(namespace, context, kubeconfig)
    found, module = _snapshot(api, choice, cluster), module_of("drain")
    brokers = module.choose_brokers(found, broker or (), node)
    with module_of("reach").open_admin(api, found.cluster) as admin:
        if cancel:
            module.run_cancel(admin, brokers, output, dry_run=dry_run)
        elif not module.run(admin, brokers, output, data=data, dry_run=dry_run, yes=yes):
            raise typer.Exit(1)


def rotate_ca(
    cluster: NamedCluster,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Ask for nothing.")] = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Replace the CA of a Strict Cluster by another, while everything runs.

    It takes a little more than an hour, in which clients learn to trust the new one; `penstock why`
    says how far it is. Nothing is restarted.
    """
    api, choice = open_api(namespace, context, kubeconfig)
    found = module_of("snapshot").choose_changeable(api, cluster, choice.namespace)
    asked = module_of("rotate").rotate_ca(api, found, dry_run=dry_run)
    if output is not Output.TABLE:
        print_document(asked, output)
        return
    verb = "would get" if dry_run else "gets"
    typer.echo(f"Cluster {asked['cluster']} {verb} another CA, in Secret {asked['newSecret']}")
    if not dry_run:
        typer.echo(f"to see how far it is: `kubectl penstock why {cluster}`")


def open_api(
    namespace: str | None, context: str | None, kubeconfig: str | None
) -> tuple["Api", KubeChoice]:
    """The API, by the options of the command, else by those before it. Both are the user's word:
    with either, the current profile is ignored."""
    wanted = WANTED.get()
    before = wanted.choice
    given = KubeChoice(
        namespace or before.namespace, context or before.context, kubeconfig or before.kubeconfig
    )
    WANTED.set(replace(wanted, choice=given))
    choice = WANTED.get().on_kubernetes().choice
    return connect(choice), choice


def _snapshot(api: "Api", choice: KubeChoice, cluster: str | None) -> Any:
    module = module_of("snapshot")
    name = cluster or WANTED.get().on_kubernetes().cluster
    return module.take_snapshot(api, module.choose_cluster(api, name, choice.namespace))


def _asked(api: "Api", snapshot: Any) -> Any:
    """With what only the brokers know."""
    return module_of("transactions").look(api, snapshot)


def _find_topic(api: "Api", choice: KubeChoice, name: str) -> Any:
    namespace = choice.namespace or api.namespace
    topic = api.find(path_of("Topic", namespace, name))
    if topic is None:
        raise MisuseError(f"there is no Topic {name!r} in namespace {namespace!r}")
    return topic


def _annotate(
    api: "Api", choice: KubeChoice, cluster: str, value: str | None, *, dry_run: bool
) -> str:
    """Sets or removes the annotation; the Cluster's full name."""
    module = module_of("snapshot")
    found = module.choose_changeable(api, cluster, choice.namespace)
    metadata = found["metadata"]
    path = path_of("Cluster", metadata["namespace"], metadata["name"])
    if not dry_run:
        api.merge(path, {"metadata": {"annotations": {PAUSED: value}}})
    return str(module.full_name(found))


def module_of(name: str) -> Any:
    """Imported when a command runs: `--help` needs none of them."""
    return importlib.import_module(f"penstock.cli.kube.{name}")
