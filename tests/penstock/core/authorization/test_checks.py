"""Bad rules are refused with an error that says which, what was seen, and what to do."""

import json

import pytest

from penstock.core.authorization import AccessRole, Kind, Operation, Prefix, Resource, Rule
from penstock.core.authorization.checks import (
    CLUSTER_RULES_MAX,
    PRINCIPALS_MAX,
    RULES_MAX,
    check_cluster_rules,
    check_own_rules,
    check_principal,
    check_total,
)
from penstock.core.authorization.text import rules_from_json, rules_to_json
from penstock.errors import ErrorCode, MisuseError

ETL = "serviceaccount:etl/spark"
ORDERS = Resource(Kind.TOPIC, "orders")
READ = (Operation.READ,)


@pytest.mark.parametrize(
    "principal",
    [
        "*",
        ETL,
        "serviceaccount:etl/*",
        "cert:Ada L.",
        "oidc:https://login.example/a/b@c",
        "oidc-group:https://login.example/ops",
        "serviceaccount:a/b.c-d",
    ],
)
def test_principals(principal: str) -> None:
    check_principal(principal)


@pytest.mark.parametrize(
    "principal",
    [
        "",
        "etl/spark",
        "serviceaccount:etl",
        "serviceaccount:*/x",
        "serviceaccount:Etl/x",
        "cert:",
        "user:x",
        "oidc:x",
        "serviceaccount:etl/spark\n",
        "**",
        "cert:a\x00",
    ],
)
def test_what_is_no_principal(principal: str) -> None:
    with pytest.raises(MisuseError, match="is not one; write") as refused:
        check_principal(principal)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert repr(principal) in refused.value.message


@pytest.mark.parametrize(
    ("rule", "seen"),
    [
        (Rule(principals=(), operations=READ), "rule 1 of topic orders has no principals"),
        (Rule(principals=(ETL,)), "has no operations; name at least one of Read, Write"),
        (Rule(principals=("x",), operations=READ), "rule 1 of topic orders: principal 'x'"),
        (Rule(principals=(ETL,), operations=(Operation.RESET,)), "Reset is not one of a topic"),
        (Rule(principals=(ETL,), operations=(Operation.CREATE,)), "is there already"),
        (Rule(principals=(ETL,), role=AccessRole.ADMIN), "only the cluster's rules have one"),
        (
            Rule(principals=(ETL,) * (PRINCIPALS_MAX + 1), operations=READ),
            f"{PRINCIPALS_MAX + 1} principals, the limit is {PRINCIPALS_MAX}",
        ),
        (
            Rule(principals=("cert:" + "x" * 500,), operations=READ),
            "has 505 characters, the limit is 500",
        ),
    ],
)
def test_own_rules_that_are_refused(rule: Rule, seen: str) -> None:
    good = Rule(principals=(ETL,), operations=READ)
    check_own_rules(ORDERS, [good])
    with pytest.raises(MisuseError) as refused:
        check_own_rules(ORDERS, [good, rule])
    assert seen in refused.value.message


@pytest.mark.parametrize(
    ("rule", "seen"),
    [
        (Rule(principals=(ETL,), operations=READ), "either a role (admin, viewer) or one prefix"),
        (
            Rule(principals=(ETL,), operations=READ, role=AccessRole.ADMIN),
            "has a role and operations",
        ),
        (
            Rule(principals=(ETL,), operations=READ, prefix=Prefix(Kind.TRANSACTIONAL_ID, "")),
            "Read is not one of a transactional id; it has Write, Describe",
        ),
        (
            Rule(principals=(ETL,), operations=READ, prefix=Prefix(Kind.TOPIC, "x" * 250)),
            "a prefix of 250 characters; a topic has 249 at most",
        ),
        (Rule(principals=(ETL,), prefix=Prefix(Kind.TOPIC, "")), "has no operations"),
    ],
)
def test_rules_of_the_cluster_that_are_refused(rule: Rule, seen: str) -> None:
    with pytest.raises(MisuseError) as refused:
        check_cluster_rules([rule])
    assert seen in refused.value.message


def test_too_many_rules_are_refused() -> None:
    rule = Rule(principals=(ETL,), operations=READ)
    check_own_rules(ORDERS, [rule] * RULES_MAX)
    with pytest.raises(MisuseError, match=f"{RULES_MAX + 1}, the limit is {RULES_MAX}"):
        check_own_rules(ORDERS, [rule] * (RULES_MAX + 1))
    admin = Rule(principals=(ETL,), role=AccessRole.ADMIN)
    check_cluster_rules([admin] * CLUSTER_RULES_MAX)
    with pytest.raises(MisuseError, match=f"the limit is {CLUSTER_RULES_MAX}"):
        check_cluster_rules([admin] * (CLUSTER_RULES_MAX + 1))


def test_rules_stay_small_enough_for_their_document() -> None:
    long = Rule(principals=("cert:" + "x" * 400,) * 90, operations=READ)
    with pytest.raises(MisuseError, match="characters, the limit is 32768"):
        check_own_rules(ORDERS, [long])
    groups = {
        f"g{index}": (Rule(principals=("cert:" + "x" * 400,) * 60, operations=READ),)
        for index in range(12)
    }
    with pytest.raises(MisuseError, match=r"of all groups take .* the limit is 262144"):
        check_total((), groups)


def test_rules_as_json_are_read_back() -> None:
    rules = (
        Rule(principals=(ETL, "*"), operations=(Operation.READ, Operation.WRITE)),
        Rule(principals=(ETL,), role=AccessRole.VIEWER),
        Rule(principals=(ETL,), operations=READ, prefix=Prefix(Kind.GROUP, "")),
    )
    found = json.loads(json.dumps(rules_to_json(rules)))
    assert rules_from_json(found) == rules
    assert found[0] == {"principals": [ETL, "*"], "operations": ["Read", "Write"]}
    assert found[2] == {"principals": [ETL], "groupPrefix": "", "operations": ["Read"]}
