"""docs/metrics-reference.md is what the collectors of all processes say, and each description is
one that a user can read: in Prometheus and Grafana it stands alone."""

import re

import pytest
from support.metrics_page import documented

from penstock_broker.serving.quotas import COUNTED_MAX
from tools import metrics_reference
from tools.metrics_reference import Exported, controller_metrics, everything, operator_metrics


def test_the_page_is_what_processes_export() -> None:
    assert metrics_reference.main(["--check"]) == 0, "run make metrics"


def test_a_page_that_is_stale_is_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = metrics_reference.rendered().replace("Fetches waiting", "Fetches parked")
    monkeypatch.setattr(metrics_reference, "rendered", lambda: stale)
    assert metrics_reference.main(["--check"]) == 1
    assert "run make metrics" in capsys.readouterr().err


def test_the_page_has_every_metric_once_with_its_labels() -> None:
    rows = [line for line in metrics_reference.rendered().splitlines() if line.startswith("| `")]
    assert len(rows) == len(documented()) > 100
    assert documented() == {name: frozenset(one.labels) for name, one in everything().items()}


def flaws(one: Exported) -> list[str]:
    """What is wrong with a description."""
    text = one.description
    wrong = {
        "does not begin as a sentence": not re.match(r"[A-Z0-9]", text),
        "does not end as a sentence": not text.endswith("."),
        "is only the name": text.rstrip(".").lower().replace(" ", "_") in one.name,
        "has Markdown": bool(re.search(r"[`*|\[\]<>]|__|\s\s|\n", text)),
    }
    return [flaw for flaw, is_so in wrong.items() if is_so]


def test_every_description_is_a_sentence() -> None:
    assert {one.name: found for one in everything().values() if (found := flaws(one))} == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "replicas on this broker.",
        "Replicas on this broker",
        "Under replicated.",
        "See [operations](operations.md).",
        "Refuses `acks=all`.",
    ],
)
def test_a_description_that_is_none_is_noticed(text: str) -> None:
    assert flaws(Exported("penstock_under_replicated", "gauge", (), text))


def test_no_two_metrics_have_the_same_description() -> None:
    texts = [one.description for one in everything().values()]
    assert [text for text in texts if texts.count(text) > 1] == []


def test_a_metric_that_two_processes_describe_differently_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "penstock_build_info"
    other = Exported(name, "gauge", ("version", "role"), "Another one.")
    monkeypatch.setattr(metrics_reference, "operator_metrics", lambda: {name: other})
    with pytest.raises(ValueError, match=name):
        metrics_reference.rendered()


def test_the_number_of_principals_is_the_limit() -> None:
    """The layer that describes the metric cannot import it."""
    text = everything()["penstock_throttled_total"].description
    assert f" {COUNTED_MAX} principals" in text


@pytest.mark.parametrize(
    ("role", "own"), [("controller", controller_metrics), ("operator", operator_metrics)]
)
def test_a_process_names_its_own_metrics_after_itself(role: str, own: object) -> None:
    assert callable(own)
    shared = {name for name in own() if not name.startswith((f"penstock_{role}_", "process_"))}
    assert shared <= {
        "penstock_build_info",
        "penstock_connections",
        "penstock_connections_max",
        "penstock_event_loop_lag_seconds",
        "penstock_tls_certificate_expiry_seconds",
    }
