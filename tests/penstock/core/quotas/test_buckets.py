"""Rates over any window, and who never waits for ever."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.quotas import (
    Buckets,
    Limit,
    QuotaRule,
    check_quotas,
    quotas_from_json,
    quotas_to_json,
)
from penstock.errors import MisuseError

ADA, BOB = "cert:ada", "cert:bob"
RATES = st.integers(1, 10_000)
REQUESTS = st.lists(
    st.tuples(st.floats(0, 5_000, allow_nan=False), st.integers(1, 20_000)), max_size=60
)


def buckets(*rules: QuotaRule, **fields: int) -> Buckets:
    made = Buckets(**fields)
    made.put(rules)
    return made


def limited(rate: int, *principals: str, limit: Limit = Limit.PRODUCE) -> QuotaRule:
    return QuotaRule(principals or ("*",), {limit: rate})


@given(RATES, REQUESTS)
def test_no_window_gets_more_than_rate_burst_and_one_request(
    rate: int, requests: list[tuple[float, int]]
) -> None:
    bucket, now_ms = buckets(limited(rate)), 0.0
    used: list[tuple[float, int]] = []
    for pause_ms, size in requests:
        now_ms += pause_ms
        used.append((now_ms + bucket.take(ADA, Limit.PRODUCE, size, now_ms), size))
    largest = max((size for _, size in requests), default=0)
    for start in range(len(used)):
        total = 0
        for at_ms, size in used[start:]:
            total += size
            window_s = (at_ms - used[start][0]) / 1_000
            assert total <= rate * window_s + rate + largest + 1e-3


@given(RATES, REQUESTS)
def test_a_debt_is_paid_after_the_time_it_names(
    rate: int, requests: list[tuple[float, int]]
) -> None:
    bucket = buckets(limited(rate))
    for _, size in requests:
        bucket.take(ADA, Limit.PRODUCE, size, 0)
    debt_ms = bucket.debt_ms(ADA, Limit.PRODUCE, 0)
    assert debt_ms <= 1_000 * sum(size for _, size in requests) / rate
    assert bucket.debt_ms(ADA, Limit.PRODUCE, debt_ms) == pytest.approx(0, abs=1e-3)


def test_the_own_rule_is_the_only_one() -> None:
    made = buckets(limited(5), QuotaRule((ADA,), {Limit.FETCH: 7}))
    assert made.limit(ADA, Limit.PRODUCE) is None
    assert made.limit(ADA, Limit.FETCH) == 7
    assert made.limit(BOB, Limit.PRODUCE) == 5


def test_one_debt_is_not_another() -> None:
    made = buckets(limited(10))
    made.take(ADA, Limit.PRODUCE, 30, 0)
    assert made.debt_ms(ADA, Limit.PRODUCE, 0) == 2_000
    assert made.debt_ms(BOB, Limit.PRODUCE, 0) == 0
    assert made.debt_ms(ADA, Limit.FETCH, 0) == 0


def test_a_minute_of_mutations_is_the_burst() -> None:
    made = buckets(limited(60, limit=Limit.MUTATIONS))
    made.take(ADA, Limit.MUTATIONS, 62, 0)
    assert made.debt_ms(ADA, Limit.MUTATIONS, 0) == 2_000


def test_nothing_is_kept_of_whom_has_no_rule() -> None:
    made = buckets(limited(10, ADA))
    assert made.take(BOB, Limit.PRODUCE, 1_000, 0) == 0
    assert len(made) == 0


def test_only_so_many_are_remembered() -> None:
    made = buckets(limited(10), remembered_max=3)
    for index in range(10):
        made.take(f"cert:{index}", Limit.PRODUCE, 100, 0)
    assert len(made) == 3
    assert made.debt_ms("cert:9", Limit.PRODUCE, 0) == 9_000


def test_what_is_not_used_is_given_back() -> None:
    made = buckets(limited(10))
    made.take(ADA, Limit.PRODUCE, 40, 0)
    made.take(ADA, Limit.PRODUCE, -30, 0)
    assert made.debt_ms(ADA, Limit.PRODUCE, 0) == 0


def test_rules_are_read_back() -> None:
    rules = (limited(5), QuotaRule((ADA, BOB), {Limit.STREAMS: 1, Limit.MUTATIONS: 2}))
    check_quotas(rules)
    assert quotas_from_json(quotas_to_json(rules)) == rules


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ((limited(5, ADA), limited(6, ADA)), "quota 1 names 'cert:ada', and so does quota 0"),
        ((limited(0, ADA),), "must be 1 to"),
        ((QuotaRule((ADA,), {}),), "has no limit"),
        ((QuotaRule((), {Limit.FETCH: 1}),), "0 principals"),
        (
            (limited(1, "user:ada"),),
            'is not one; write "serviceaccount:<namespace>/<name>", "cert:',
        ),
        ((limited(1, "serviceaccount:etl/*"),), "of one principal"),
        ((limited(1, "oidc-group:https://a/b"),), "of one principal"),
    ],
)
def test_wrong_rules_are_refused(rules: tuple[QuotaRule, ...], words: str) -> None:
    with pytest.raises(MisuseError, match=words):
        check_quotas(rules)
