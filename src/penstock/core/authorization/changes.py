"""Small changes to the rules of a resource, which are replaced as a whole."""

from dataclasses import replace

from penstock.core.authorization.model import AccessRole, Prefix, Rule


def with_rule(rules: tuple[Rule, ...], rule: Rule) -> tuple[Rule, ...]:
    """Adds the rule's principals to a rule that allows the same, or the rule itself."""
    for index, known in enumerate(rules):
        if replace(known, principals=rule.principals) == rule:
            principals = tuple(dict.fromkeys((*known.principals, *rule.principals)))
            return (*rules[:index], replace(known, principals=principals), *rules[index + 1 :])
    return (*rules, rule)


def without_principal(
    rules: tuple[Rule, ...], principal: str, role: AccessRole | None, prefix: Prefix | None
) -> tuple[Rule, ...]:
    """Takes a principal out of all rules with this role and prefix; empty rules go."""
    kept = []
    for rule in rules:
        if (rule.role, rule.prefix) == (role, prefix) and principal in rule.principals:
            left = tuple(one for one in rule.principals if one != principal)
            if left:
                kept.append(replace(rule, principals=left))
        else:
            kept.append(rule)
    return tuple(kept)
