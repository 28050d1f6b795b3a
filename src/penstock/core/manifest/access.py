"""`spec.access`: rules of access in manifests, and the steps that make a cluster's rules match.

    spec.access ─┐
                 ├─ plan_access (pure) ─▶ AlterAccess: replaces the rules of a resource
    stored rules ┘                        local mode and the operator carry it out

Absent: the resource's rules are not managed, whoever set them. Empty: it has none. Otherwise they
are exactly these, and rules set in another way are reset as settings are.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.core.authorization.checks import (
    CLUSTER_RULES_MAX,
    PRINCIPAL_FORMS,
    PRINCIPAL_MAX_CHARS,
    PRINCIPAL_PATTERN,
    PRINCIPALS_MAX,
    RULES_MAX,
    check_cluster_rules,
    check_own_rules,
)
from penstock.core.authorization.model import (
    CLUSTER,
    OPERATIONS,
    AccessRole,
    Kind,
    Operation,
    Prefix,
    Resource,
    Rule,
)
from penstock.core.authorization.text import PREFIXES
from penstock.core.manifest.fields import Values
from penstock.core.manifest.problems import Report
from penstock.core.manifest.rows import Field
from penstock.core.manifest.rows import Kind as FieldKind
from penstock.errors import MisuseError

FIELD: Final = "access"
_PRINCIPALS: Final = Field(
    name="principals",
    kind=FieldKind.TEXTS,
    doc=f"Whom the rule allows: {PRINCIPAL_FORMS}.",
    required=True,
    min_items=1,
    max_items=PRINCIPALS_MAX,
    max_length=PRINCIPAL_MAX_CHARS,
    pattern=PRINCIPAL_PATTERN,
    pattern_doc=PRINCIPAL_FORMS,
)


def own_access(kind: Kind) -> Field:
    """The row of `access` of a topic or a group."""
    # A topic that has rules is there already: Create is given by the cluster's rules.
    choices = tuple(one.value for one in OPERATIONS[kind] if one is not Operation.CREATE)
    return Field(
        name=FIELD,
        kind=FieldKind.OBJECTS,
        doc=f"Who may do what with this {kind.value}, if the Cluster is Strict. Absent = rules set "
        "by `penstock acl` are kept; empty = it has no rules of its own; otherwise it has exactly "
        "these.",
        max_items=RULES_MAX,
        fields=(
            _PRINCIPALS,
            Field(
                name="operations",
                kind=FieldKind.TEXTS,
                doc=f"What they may do with the {kind.value}; each includes Describe.",
                required=True,
                min_items=1,
                max_items=len(choices),
                choices=choices,
            ),
        ),
    )


_WITH_PREFIX: Final = tuple(
    Field(
        name=name,
        kind=FieldKind.TEXT,
        doc=f"The rule is about all {kind.value}s whose names begin so; empty = all of them.",
    )
    for name, kind in PREFIXES.items()
)
CLUSTER_ACCESS: Final = Field(
    name=FIELD,
    kind=FieldKind.OBJECTS,
    doc="Who may do what with the Cluster, or with everything whose name begins in a certain way, "
    "if the Cluster is Strict. Absent = rules set by `penstock acl` are kept; empty = it has none "
    "of its own; otherwise it has exactly these. Each gives a role, or operations with one prefix.",
    max_items=CLUSTER_RULES_MAX,
    fields=(
        _PRINCIPALS,
        Field(
            name="role",
            kind=FieldKind.TEXT,
            doc="admin = everything; viewer = to describe everything, and read no record.",
            choices=tuple(role.value for role in AccessRole),
        ),
        *_WITH_PREFIX,
        Field(
            name="operations",
            kind=FieldKind.TEXTS,
            doc="What they may do with what the prefix covers; each includes Describe.",
            max_items=len(Operation),
            choices=tuple(operation.value for operation in Operation),
        ),
    ),
)
"""The row of `access` of a Cluster."""


def rules_from_values(values: Values) -> tuple[Rule, ...] | None:
    """The rules of `access`; None if it is absent or wrong, which has been reported."""
    entries = values.objects(FIELD)
    return None if entries is None else tuple(_rule(each) for each in entries)


def _rule(values: Values) -> Rule:
    role = values.text("role") if "role" in values else ""
    return Rule(
        principals=values.texts("principals"),
        operations=tuple(Operation(text) for text in values.texts("operations")),
        role=AccessRole(role) if role else None,
        prefix=_prefix(values),
    )


def _prefix(values: Values) -> Prefix | None:
    """The first one; `check_cluster_access` reports that there are more."""
    for name, kind in PREFIXES.items():
        if name in values and values.given(name):
            return Prefix(kind, values.text(name))
    return None


def check_cluster_access(values: Values, rules: tuple[Rule, ...] | None, report: Report) -> None:
    """What rows cannot say: each rule gives a role, or operations with one prefix."""
    for index, entry in enumerate(values.objects(FIELD) or ()):
        given = [name for name in ("role", *PREFIXES) if entry.given(name)]
        if len(given) != 1:
            seen = " and ".join(given) or "none of them"
            text = f"has {seen}; it must have one of role, {', '.join(PREFIXES)}"
            report.add(f"spec.{FIELD}[{index}]", text)
            return
    _check(CLUSTER, rules, report)


def check_access(kind: Kind, name: str, rules: tuple[Rule, ...] | None, report: Report) -> None:
    """What rows cannot say, such as the size of all rules together."""
    _check(Resource(kind, name), rules, report)


def _check(resource: Resource, rules: tuple[Rule, ...] | None, report: Report) -> None:
    try:
        if resource == CLUSTER:
            check_cluster_rules(rules or ())
        else:
            check_own_rules(resource, rules or ())
    except MisuseError as error:
        report.add(f"spec.{FIELD}", f"cannot be used: {error.message}")


@dataclass(frozen=True, slots=True)
class AlterAccess:
    """Replaces the rules of a resource: `before` is what it has, `rules` what it will have."""

    resource: Resource
    before: tuple[Rule, ...]
    rules: tuple[Rule, ...]

    def __str__(self) -> str:
        old, new = _allowed(self.before), _allowed(self.rules)
        parts = [f"allows {text}" for text in new if text not in old]
        parts += [f"no longer allows {text}" for text in old if text not in new]
        return f"{self.resource}: access: {', '.join(parts) or 'the same in other words'}"


def plan_access(
    wanted: Mapping[Resource, tuple[Rule, ...] | None],
    stored: Mapping[Resource, tuple[Rule, ...]],
) -> list[AlterAccess]:
    """A step for each managed resource whose rules differ; None in `wanted`: not managed."""
    return [
        AlterAccess(resource, stored.get(resource, ()), rules)
        for resource, rules in wanted.items()
        if rules is not None and rules != stored.get(resource, ())
    ]


def _allowed(rules: Iterable[Rule]) -> list[str]:
    """`serviceaccount:etl/spark Read`, in the order of the rules, each once."""
    return list(
        dict.fromkeys(
            f"{principal} {what}"
            for rule in rules
            for principal in rule.principals
            for what in _given(rule)
        )
    )


def _given(rule: Rule) -> list[str]:
    if rule.role is not None:
        return [f"as {rule.role.value}"]
    if rule.prefix is None:
        return [operation.value for operation in rule.operations]
    covered = f"{rule.prefix.kind.value}s {rule.prefix.text}*"
    return [f"{operation.value} on {covered}" for operation in rule.operations]
