"""`spec.quotas` of a Cluster: what is read, what is refused, and the step that is planned."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.manifest import ManifestError, parse_manifest
from penstock.core.manifest.quotas import plan_quotas
from penstock.core.quantities import quantity_bytes
from penstock.core.quotas import Limit, QuotaRule

ADA = QuotaRule(("cert:ada",), {Limit.PRODUCE: 5, Limit.STREAMS: 2})
BOB = QuotaRule(("cert:bob",), {Limit.STREAMS: 2})


def read(quotas: object) -> tuple[QuotaRule, ...] | None:
    cluster = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": "flights"},
        "spec": {"brokers": 1, **({} if quotas is ... else {"quotas": quotas})},
    }
    return parse_manifest([cluster], "x.yaml").clusters[0].spec.quotas


def test_quotas_are_read_in_bytes() -> None:
    written = {
        "principals": ["*"],
        "produceBytesPerSecond": "10Mi",
        "fetchBytesPerSecond": "1.5k",
        "requestMillisPerSecond": 300,
        "mutationsPerMinute": 60,
        "streams": 200,
    }
    limits = {
        Limit.PRODUCE: 10 * 1024**2,
        Limit.FETCH: 1_500,
        Limit.REQUEST: 300,
        Limit.MUTATIONS: 60,
        Limit.STREAMS: 200,
    }
    assert read([written]) == (QuotaRule(("*",), limits),)
    assert read([{"principals": ["cert:ada"], "fetchBytesPerSecond": 7}]) == (
        QuotaRule(("cert:ada",), {Limit.FETCH: 7}),
    )


def test_absent_is_not_empty() -> None:
    assert read(...) is None
    assert read(None) is None
    assert read([]) == ()


@pytest.mark.parametrize(
    ("quotas", "said"),
    [
        ({"principals": ["*"]}, "spec.quotas is a mapping; it must be a list of mappings"),
        ([{"streams": 1}], "spec.quotas[0].principals is missing"),
        ([{"principals": ["ada"], "streams": 1}], "spec.quotas[0].principals[0] is 'ada'"),
        ([{"principals": ["*"], "streams": True}], "spec.quotas[0].streams is true"),
        ([{"principals": ["*"], "streems": 1, "streams": 1}], "did you mean streams?"),
        (
            [{"principals": ["*"], "streams": 1}, {"principals": ["*"], "streams": 2}],
            "spec.quotas cannot be used: quota 1 names '*', and so does quota 0",
        ),
        (
            [{"principals": ["*"], "fetchBytesPerSecond": "1" * 21}],
            "it must be a quantity such as 10Gi",
        ),
    ],
)
def test_what_is_wrong_is_told_in_one_line(quotas: object, said: str) -> None:
    with pytest.raises(ManifestError) as caught:
        read(quotas)
    (line,) = str(caught.value).splitlines()
    assert line.startswith("x.yaml: Cluster/flights: spec.quotas")
    assert said in line, json.dumps(quotas)


@pytest.mark.parametrize(
    ("quantity", "size"),
    [("1", 1), ("1.5", 2), ("1.0001k", 1_001), ("3Ki", 3_072), ("2.5Gi", 5 << 29), ("1P", 10**15)],
)
def test_quantities_are_what_kubernetes_takes_them_for(quantity: str, size: int) -> None:
    assert quantity_bytes(quantity) == size


@given(st.integers(1, 1 << 50))
def test_whole_numbers_are_themselves(size: int) -> None:
    assert quantity_bytes(str(size)) == size


def test_only_what_differs_is_a_step() -> None:
    assert plan_quotas(None, (ADA,)) is None
    assert plan_quotas((), ()) is None
    assert plan_quotas((ADA,), (ADA,)) is None
    step: Any = plan_quotas((ADA,), (BOB,))
    assert (step.before, step.rules) == ((BOB,), (ADA,))
    assert str(step) == (
        "the cluster: quotas: cert:ada has produceBytesPerSecond=5 streams=2, "
        "cert:bob has none any longer"
    )
