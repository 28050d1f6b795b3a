"""`penstock acl …`: who may do what.

On Kubernetes, rules belong into manifests (`spec.access`); these commands are for looking, and for
clusters without manifests. A cluster that asks nobody who they are stores rules, and obeys none.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli.access_rows import rule_row
from penstock.cli.changes import print_change, replace_rules
from penstock.cli.connect import open_admin
from penstock.cli.options import (
    Bootstrap,
    DryRun,
    Output,
    OutputOption,
    example,
    given_not_empty,
)
from penstock.cli.output import keep_code, print_record, print_rows
from penstock.cli.usage import WrongUsageError, typed
from penstock.core.authorization import (
    CLUSTER,
    AccessRole,
    Kind,
    Operation,
    Prefix,
    Resource,
    Rule,
)
from penstock.core.authorization.changes import with_rule, without_principal
from penstock.core.authorization.checks import (
    check_cluster_rules,
    check_operation,
    check_own_rules,
    check_principal,
)
from penstock.errors import MisuseError

if TYPE_CHECKING:
    from penstock.client import Admin

app = typer.Typer(
    help="Show, check and change who may do what. A cluster that asks nobody who they are obeys no "
    "rule.",
    no_args_is_help=True,
)
_OPERATIONS: Final = {operation.value.lower(): operation for operation in Operation}
_KINDS: Final = {
    "topic": Kind.TOPIC,
    "group": Kind.GROUP,
    "transactional-id": Kind.TRANSACTIONAL_ID,
    "cluster": Kind.CLUSTER,
}
_PRINCIPAL_HELP: Final = "As serviceaccount:etl/spark; '*': everybody who is known."

Topic = Annotated[str, typer.Option("--topic", "-t", help="Of this topic.")]
Group = Annotated[str, typer.Option("--group", "-g", help="Of this group.")]
TopicPrefix = Annotated[
    str | None, typer.Option(help="Of all topics whose names begin so; '': of all.")
]
GroupPrefix = Annotated[
    str | None, typer.Option(help="Of all groups whose ids begin so; '': of all.")
]
IdPrefix = Annotated[
    str | None,
    typer.Option(
        "--transactional-id-prefix", help="Of all transactional ids that begin so; '': of all."
    ),
]
Role = Annotated[
    AccessRole | None, typer.Option(help="admin: everything; viewer: to describe everything.")
]


@app.command(
    "list", epilog=example("penstock acl list", "penstock acl list --topic orders -o json")
)
def list_(
    *,
    topic: Topic = "",
    group: Group = "",
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List rules: of the cluster, and of topics and groups that have some."""
    wanted = None
    if topic or group:
        wanted = [_own(topic, group)]
    with open_admin(bootstrap) as admin:
        seen = admin.describe_access(wanted)
    rows = [rule_row(resource, rule) for resource, rules in seen.items() for rule in rules]
    print_rows(rows, output, empty="there are no rules")


@app.command(
    epilog=example(
        "penstock acl allow serviceaccount:etl/spark read write --topic orders",
        "penstock acl allow serviceaccount:etl/spark read --group-prefix etl-",
        "penstock acl allow serviceaccount:ops/tool --role admin",
    )
)
def allow(
    principal: Annotated[str, typer.Argument(metavar="PRINCIPAL", help=_PRINCIPAL_HELP)],
    operations: Annotated[
        list[str] | None,
        typer.Argument(metavar="OPERATION…", help=f"Out of {', '.join(_OPERATIONS)}."),
    ] = None,
    *,
    topic: Topic = "",
    group: Group = "",
    topic_prefix: TopicPrefix = None,
    group_prefix: GroupPrefix = None,
    transactional_id_prefix: IdPrefix = None,
    role: Role = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Add a rule."""
    prefix = _prefix(topic_prefix, group_prefix, transactional_id_prefix)
    resource = _resource(topic, group, prefix, role)
    rule = Rule(
        principals=(principal,),
        operations=tuple(_operation(text) for text in operations or ()),
        role=role,
        prefix=prefix,
    )
    with typed():
        check_principal(principal)
        check_cluster_rules([rule]) if resource == CLUSTER else check_own_rules(resource, [rule])
    with open_admin(bootstrap) as admin:
        after = _change(admin, resource, lambda before: with_rule(before, rule), dry_run=dry_run)
    said = f"allowed, by the rules of {resource}"
    if dry_run:
        said = f"could be allowed, by the rules of {resource}"
    _print(said, resource, after, output, dry_run=dry_run)


@app.command(
    epilog=example(
        "penstock acl revoke serviceaccount:etl/spark --topic orders",
        "penstock acl revoke serviceaccount:ops/tool --role admin",
    )
)
def revoke(
    principal: Annotated[str, typer.Argument(metavar="PRINCIPAL", help=_PRINCIPAL_HELP)],
    *,
    topic: Topic = "",
    group: Group = "",
    topic_prefix: TopicPrefix = None,
    group_prefix: GroupPrefix = None,
    transactional_id_prefix: IdPrefix = None,
    role: Role = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Take a principal out of the rules of a topic or group, or with this role or prefix."""
    prefix = _prefix(topic_prefix, group_prefix, transactional_id_prefix)
    resource = _resource(topic, group, prefix, role)

    def less(before: tuple[Rule, ...]) -> tuple[Rule, ...]:
        after = without_principal(before, principal, role, prefix)
        if after == before:
            raise MisuseError(
                f"no such rule of {resource} names {principal}; see penstock acl list"
            )
        return after

    with open_admin(bootstrap) as admin:
        after = _change(admin, resource, less, dry_run=dry_run)
    said = f"revoked, from the rules of {resource}"
    if dry_run:
        said = f"could be revoked, from the rules of {resource}"
    _print(said, resource, after, output, dry_run=dry_run)


@app.command(
    "can-i",
    epilog=example(
        "penstock acl can-i write topic orders",
        "penstock acl can-i read group readers --as serviceaccount:etl/spark",
        "penstock acl can-i alter cluster",
    ),
)
def can_i(
    operation: Annotated[
        str, typer.Argument(metavar="OPERATION", help=f"Out of {', '.join(_OPERATIONS)}.")
    ],
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"Out of {', '.join(_KINDS)}.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the topic, group or id.")] = "",
    *,
    principal: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="PRINCIPAL",
            help="Somebody else; for viewers, admins.",
            callback=given_not_empty,
        ),
    ] = None,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say whether something is allowed, and by which rule; exit with 1 if it is not."""
    if kind not in _KINDS:
        raise WrongUsageError(f"{kind!r} is none of {', '.join(_KINDS)}")
    if bool(name) == (kind == "cluster"):
        raise WrongUsageError(
            "give a name, except for the cluster, as in: can-i write topic orders"
        )
    resource, wanted = Resource(_KINDS[kind], name), _operation(operation)
    with typed():
        check_operation(wanted, resource.kind)
    with open_admin(bootstrap) as admin:
        seen = admin.check_access(wanted, resource, principal=principal or "")
    record: dict[str, object] = {
        "principal": seen.principal or "(nobody is asked who they are)",
        "allowed": seen.allowed,
        "by": str(seen.of) if seen.of else "",
        "principals": list(seen.rule.principals) if seen.rule else [],
    }
    with keep_code():
        print_record(record, output)
    if not seen.allowed:
        raise typer.Exit(1)


def _change(
    admin: "Admin",
    resource: Resource,
    changed: Callable[[tuple[Rule, ...]], tuple[Rule, ...]],
    *,
    dry_run: bool,
) -> tuple[Rule, ...]:
    """Returns the rules as they are then, or with `dry_run` would be."""
    return replace_rules(
        lambda: admin.describe_access([resource]).get(resource, ()),
        changed,
        lambda after, before: admin.alter_access(
            resource, after, validate_only=dry_run, expected=before
        ),
    )


def _print(
    said: str, resource: Resource, rules: tuple[Rule, ...], output: Output, *, dry_run: bool
) -> None:
    record = {"rules": [rule_row(resource, rule) for rule in rules]}
    print_change(said, record, output, dry_run=dry_run)


def _operation(text: str) -> Operation:
    found = _OPERATIONS.get(text.lower())
    if found is None:
        raise WrongUsageError(f"{text!r} is no operation; there are {', '.join(_OPERATIONS)}")
    return found


def _own(topic: str, group: str) -> Resource:
    if bool(topic) == bool(group):
        raise WrongUsageError("give --topic or --group, not both")
    return Resource(Kind.TOPIC, topic) if topic else Resource(Kind.GROUP, group)


def _prefix(topic: str | None, group: str | None, transactional_id: str | None) -> Prefix | None:
    given = [
        Prefix(kind, text)
        for kind, text in (
            (Kind.TOPIC, topic),
            (Kind.GROUP, group),
            (Kind.TRANSACTIONAL_ID, transactional_id),
        )
        if text is not None
    ]
    if len(given) > 1:
        raise WrongUsageError("give one prefix: each is a rule of its own")
    return given[0] if given else None


def _resource(topic: str, group: str, prefix: Prefix | None, role: AccessRole | None) -> Resource:
    """Whose rules are changed."""
    if sum(bool(one) for one in (topic, group, prefix, role)) != 1:
        raise WrongUsageError(
            "say of what: give exactly one of --topic, --group, --topic-prefix, --group-prefix, "
            "--transactional-id-prefix and --role"
        )
    return CLUSTER if prefix or role else _own(topic, group)
