"""Rules of access and quotas as rows, as `penstock acl`, `quota` and `access` print them. Pure."""

from penstock.core.authorization import Resource, Rule
from penstock.core.quotas import QuotaRule


def rule_row(resource: Resource, rule: Rule) -> dict[str, object]:
    """`of`: whose rule it is; `on`: what it allows something on."""
    return {
        "of": str(resource),
        "principals": list(rule.principals),
        "allows": rule.role.value if rule.role else [one.value for one in rule.operations],
        "on": _scope(resource, rule),
    }


def quota_row(rule: QuotaRule) -> dict[str, object]:
    """Limits by their names in manifests."""
    return {
        "principals": list(rule.principals),
        "limits": {limit.value: value for limit, value in rule.limits.items()},
    }


def _scope(resource: Resource, rule: Rule) -> str:
    if rule.role is not None:
        return "everything"
    if rule.prefix is None:
        return str(resource)
    return f"every {rule.prefix.kind.value} {rule.prefix.text}*"
