"""Rules as JSON, the same in stored documents and in manifests.

{"principals": ["serviceaccount:etl/spark"], "operations": ["Read", "Write"]}
{"principals": ["oidc-group:https://login/ops"], "role": "admin"}
{"principals": ["…"], "topicPrefix": "etl.", "operations": ["Create"]}
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from penstock.core.authorization.model import AccessRole, Kind, Operation, Prefix, Rule

PREFIXES: Final[Mapping[str, Kind]] = {
    "topicPrefix": Kind.TOPIC,
    "groupPrefix": Kind.GROUP,
    "transactionalIdPrefix": Kind.TRANSACTIONAL_ID,
}
"""The kind by its field."""
_FIELD: Final = {kind: name for name, kind in PREFIXES.items()}


def rules_to_json(rules: Iterable[Rule]) -> list[dict[str, Any]]:
    """`rules_from_json` reads it back."""
    return [_rule_to_json(rule) for rule in rules]


def rules_from_json(found: Iterable[Mapping[str, Any]]) -> tuple[Rule, ...]:
    """Raises KeyError, TypeError, ValueError for what `rules_to_json` does not write."""
    return tuple(_rule_from_json(entry) for entry in found)


def _rule_to_json(rule: Rule) -> dict[str, Any]:
    found: dict[str, Any] = {"principals": list(rule.principals)}
    if rule.role is not None:
        found["role"] = rule.role.value
    if rule.prefix is not None:
        found[_FIELD[rule.prefix.kind]] = rule.prefix.text
    if rule.operations:
        found["operations"] = [operation.value for operation in rule.operations]
    return found


def _rule_from_json(entry: Mapping[str, Any]) -> Rule:
    prefixes = [
        Prefix(kind, str(entry[name]))
        for name, kind in PREFIXES.items()
        if entry.get(name) is not None
    ]
    if len(prefixes) > 1:
        raise ValueError(f"a rule has prefixes of {len(prefixes)} kinds: one is possible")
    role = entry.get("role")
    return Rule(
        principals=tuple(str(principal) for principal in entry["principals"]),
        operations=tuple(Operation(str(one)) for one in entry.get("operations") or ()),
        role=None if role is None else AccessRole(str(role)),
        prefix=prefixes[0] if prefixes else None,
    )
