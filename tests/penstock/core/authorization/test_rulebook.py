"""Decisions by rules: each case by example, and all of them against a model that has no index."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.authorization import (
    CLUSTER,
    AccessRole,
    Kind,
    Operation,
    Prefix,
    Resource,
    Rule,
    Rulebook,
)
from penstock.core.authorization.model import OPERATIONS

ETL = "serviceaccount:etl/spark"
ORDERS = Resource(Kind.TOPIC, "orders")


def book(*rules: Rule, **topics: tuple[Rule, ...]) -> Rulebook:
    made = Rulebook()
    made.put_cluster(rules, {})
    for name, own in topics.items():
        made.put_topic(name, own)
    return made


def may(rules: Rulebook, operation: Operation, resource: Resource = ORDERS, who: str = ETL) -> bool:
    return rules.decide(who, (), operation, resource).allowed


def test_without_a_rule_all_is_denied() -> None:
    assert not any(
        may(book(), operation, Resource(kind, "x"))
        for kind, known in OPERATIONS.items()
        for operation in known
    )


def test_an_operation_includes_describe_and_nothing_else() -> None:
    rules = book(orders=(Rule(principals=(ETL,), operations=(Operation.WRITE,)),))
    allowed = [operation for operation in Operation if may(rules, operation)]
    assert allowed == [Operation.WRITE, Operation.DESCRIBE]
    assert not may(rules, Operation.WRITE, Resource(Kind.TOPIC, "orders2"))
    assert not may(rules, Operation.WRITE, Resource(Kind.GROUP, "orders"))


def test_a_decision_names_its_rule_and_whose_it_is() -> None:
    own = Rule(principals=("serviceaccount:etl/*",), operations=(Operation.READ,))
    prefix = Rule(
        principals=("*",), operations=(Operation.CREATE,), prefix=Prefix(Kind.TOPIC, "ord")
    )
    rules = book(prefix, orders=(own,))
    read = rules.decide(ETL, (), Operation.READ, ORDERS)
    assert (read.rule, read.of) == (own, ORDERS)
    create = rules.decide(ETL, (), Operation.CREATE, ORDERS)
    assert (create.rule, create.of) == (prefix, CLUSTER)


def test_every_account_of_a_namespace_is_not_that_of_another() -> None:
    rules = book(orders=(Rule(principals=("serviceaccount:etl/*",), operations=(Operation.READ,)),))
    assert may(rules, Operation.READ, who="serviceaccount:etl/other")
    assert not may(rules, Operation.READ, who="serviceaccount:etl2/spark")
    assert not may(rules, Operation.READ, who="cert:serviceaccount:etl/spark")


def test_names_that_nothing_can_have_are_not_remembered() -> None:
    rules = book()
    tracemalloc.start()
    try:
        for number in range(50):
            assert not may(rules, Operation.READ, Resource(Kind.TOPIC, f"{number}" * 1_000_000))
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 1_000_000, "anybody who is known could fill the memory with names"


def test_a_group_of_the_caller_counts() -> None:
    group = "oidc-group:https://login.example/ops"
    rules = book(Rule(principals=(group,), role=AccessRole.ADMIN))
    who = "oidc:https://login.example/ada"
    assert not rules.decide(who, (), Operation.ALTER, CLUSTER).allowed
    assert rules.decide(who, (group,), Operation.ALTER, CLUSTER).allowed


def test_a_viewer_describes_everything_and_reads_nothing() -> None:
    rules = book(Rule(principals=(ETL,), role=AccessRole.VIEWER))
    for kind, known in OPERATIONS.items():
        for operation in known:
            allowed = may(rules, operation, Resource(kind, "x"))
            assert allowed == (operation is Operation.DESCRIBE)


def test_roles_by_option_hold_without_any_rule() -> None:
    rules = Rulebook(admins=["cert:ada"], viewers=["cert:bob", "cert:ada"])
    assert not rules.complete
    ada = rules.decide("cert:ada", (), Operation.DELETE, ORDERS)
    assert ada.allowed
    assert ada.by_option
    assert ada.rule is None
    assert may(rules, Operation.DESCRIBE, who="cert:bob")
    assert not may(rules, Operation.READ, who="cert:bob")


def test_a_removed_rule_is_forgotten_at_once() -> None:
    rules = book(orders=(Rule(principals=(ETL,), operations=(Operation.READ,)),))
    assert may(rules, Operation.READ)
    before = rules.generation
    rules.put_topic("orders", ())
    assert rules.generation > before
    assert not may(rules, Operation.READ)


def test_the_generation_stands_still_while_nothing_changes() -> None:
    own = (Rule(principals=(ETL,), operations=(Operation.READ,)),)
    rules = book(orders=own)
    before = rules.generation
    rules.put_topic("orders", own)
    rules.put_topic("never", ())
    rules.keep_topics({"orders"})
    rules.put_cluster((), {})
    assert rules.generation == before
    rules.keep_topics(set())
    assert not may(rules, Operation.READ)


def test_all_of_a_prefix_needs_a_prefix_as_short() -> None:
    rules = book(
        Rule(principals=(ETL,), operations=(Operation.READ,), prefix=Prefix(Kind.TOPIC, "etl."))
    )
    rights = rules.rights(ETL)
    assert rights.decide_all(Operation.READ, Prefix(Kind.TOPIC, "etl.orders")).allowed
    assert not rights.decide_all(Operation.READ, Prefix(Kind.TOPIC, "etl")).allowed
    assert not rights.decide_all(Operation.WRITE, Prefix(Kind.TOPIC, "etl.")).allowed


# ---------------------------------------------------------------- against a model

NAMES = st.text(alphabet="ab", max_size=3)
PRINCIPALS = st.sampled_from(
    [
        "serviceaccount:a/x",
        "serviceaccount:a/y",
        "serviceaccount:b/x",
        "serviceaccount:a/*",
        "cert:x",
        "*",
        "oidc-group:i/g",
    ]
)
SOME_PRINCIPALS = st.lists(PRINCIPALS, min_size=1, max_size=2).map(tuple)
NAMED = st.sampled_from([Kind.TOPIC, Kind.GROUP, Kind.TRANSACTIONAL_ID])


@st.composite
def prefix_rules(draw: st.DrawFn) -> Rule:
    kind = draw(NAMED)
    chosen = st.lists(st.sampled_from(OPERATIONS[kind]), min_size=1, max_size=3)
    return Rule(
        principals=draw(SOME_PRINCIPALS),
        operations=tuple(draw(chosen)),
        prefix=Prefix(kind, draw(NAMES)),
    )


ROLE_RULES = st.builds(Rule, principals=SOME_PRINCIPALS, role=st.sampled_from(AccessRole))
OWN_RULES = st.lists(
    st.builds(
        Rule,
        principals=SOME_PRINCIPALS,
        operations=st.lists(st.sampled_from(list(Operation)), min_size=1, max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=3,
).map(tuple)


def is_named(rule: Rule, principal: str, groups: tuple[str, ...]) -> bool:
    namespace = principal.rpartition("/")[0]
    return any(
        named in ("*", principal, *groups)
        or (named.startswith("serviceaccount:") and named == f"{namespace}/*")
        for named in rule.principals
    )


def allows(rule: Rule, own: bool, operation: Operation, resource: Resource) -> bool:
    if rule.role is AccessRole.ADMIN:
        return True
    if rule.role is AccessRole.VIEWER:
        return operation is Operation.DESCRIBE
    covered = operation in rule.operations or operation is Operation.DESCRIBE
    if own:
        return covered
    assert rule.prefix is not None
    return (
        covered and rule.prefix.kind is resource.kind and resource.name.startswith(rule.prefix.text)
    )


@given(
    cluster=st.lists(st.one_of(prefix_rules(), ROLE_RULES), max_size=6),
    topics=st.dictionaries(NAMES, OWN_RULES, max_size=3),
    groups=st.dictionaries(NAMES, OWN_RULES, max_size=3),
    who=PRINCIPALS.filter(lambda one: "*" not in one and "group" not in one),
    member=st.booleans(),
    asked=st.lists(
        st.tuples(st.sampled_from(list(Operation)), st.builds(Resource, NAMED, NAMES)),
        min_size=1,
        max_size=5,
    ),
)
def test_decisions_are_those_of_a_plain_search(
    cluster: list[Rule],
    topics: dict[str, tuple[Rule, ...]],
    groups: dict[str, tuple[Rule, ...]],
    who: str,
    member: bool,
    asked: list[tuple[Operation, Resource]],
) -> None:
    rules = Rulebook()
    rules.put_cluster(tuple(cluster), groups)
    for name, own in topics.items():
        rules.put_topic(name, own)
    named_groups = ("oidc-group:i/g",) if member else ()
    for operation, resource in asked * 2:  # the second time from what is kept
        named = {Kind.TOPIC: topics, Kind.GROUP: groups}.get(resource.kind, {})
        fitting = [
            (rule, of)
            for rule, of in [
                *((rule, CLUSTER) for rule in cluster),
                *((rule, resource) for rule in named.get(resource.name, ())),
            ]
            if is_named(rule, who, named_groups)
            and allows(rule, of is resource, operation, resource)
        ]
        seen = rules.decide(who, named_groups, operation, resource)
        assert seen.allowed == bool(fitting)
        if seen.allowed:
            assert (seen.rule, seen.of) in fitting
