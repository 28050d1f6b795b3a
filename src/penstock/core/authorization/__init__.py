"""Who may do what: rules, what is wrong with them, decisions by them.

    rules ── parse, check ─▶ stored ─▶ Rulebook ── decide(principal, …) ─▶ Decision

What no rule allows is denied; no rule denies. Pure: who a caller is, is found out elsewhere.
"""

from penstock.core.authorization.model import (
    CLUSTER,
    AccessRole,
    Kind,
    Operation,
    Prefix,
    Resource,
    Rule,
)
from penstock.core.authorization.rulebook import Decision, Rights, Rulebook

__all__ = [
    "CLUSTER",
    "AccessRole",
    "Decision",
    "Kind",
    "Operation",
    "Prefix",
    "Resource",
    "Rights",
    "Rule",
    "Rulebook",
]
