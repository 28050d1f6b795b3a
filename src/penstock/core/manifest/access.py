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
    PRINCIPAL_FORMS,
    PRINCIPAL_MAX_CHARS,
    PRINCIPAL_PATTERN,
    PRINCIPALS_MAX,
    RULES_MAX,
    check_own_rules,
)
from penstock.core.authorization.model import OPERATIONS, Kind, Operation, Resource, Rule
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


def rules_from_values(values: Values) -> tuple[Rule, ...] | None:
    """The rules of `access`; None if it is absent or wrong, which has been reported."""
    entries = values.objects(FIELD)
    if entries is None:
        return None
    return tuple(
        Rule(
            principals=each.texts("principals"),
            operations=tuple(Operation(text) for text in each.texts("operations")),
        )
        for each in entries
    )


def check_access(kind: Kind, name: str, rules: tuple[Rule, ...] | None, report: Report) -> None:
    """What rows cannot say, such as the size of all rules together."""
    try:
        check_own_rules(Resource(kind, name), rules or ())
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
            f"{principal} {operation.value}"
            for rule in rules
            for principal in rule.principals
            for operation in rule.operations
        )
    )
