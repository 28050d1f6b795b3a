"""Small changes to rules."""

from penstock.core.authorization import AccessRole, Kind, Operation, Prefix, Rule
from penstock.core.authorization.changes import with_rule, without_principal

READ = (Operation.READ,)
A, B = "cert:a", "cert:b"


def test_a_rule_that_allows_the_same_gets_the_principal() -> None:
    known = (Rule(principals=(A,), operations=READ),)
    assert with_rule(known, Rule(principals=(B,), operations=READ)) == (
        Rule(principals=(A, B), operations=READ),
    )
    assert with_rule(known, known[0]) == known
    other = Rule(principals=(B,), operations=READ, prefix=Prefix(Kind.TOPIC, ""))
    assert with_rule(known, other) == (*known, other)


def test_a_principal_is_taken_out_of_what_is_named() -> None:
    prefix = Prefix(Kind.TOPIC, "x")
    rules = (
        Rule(principals=(A, B), operations=READ, prefix=prefix),
        Rule(principals=(A,), operations=(Operation.WRITE,), prefix=prefix),
        Rule(principals=(A,), role=AccessRole.ADMIN),
    )
    left = without_principal(rules, A, None, prefix)
    assert left == (Rule(principals=(B,), operations=READ, prefix=prefix), rules[2])
    assert without_principal(rules, A, AccessRole.ADMIN, None) == rules[:2]
    assert without_principal(rules, A, None, None) == rules
