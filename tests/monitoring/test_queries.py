"""Alerts, dashboards and docs/metrics.md ask for what processes export, and Prometheus can parse
it; dashboards are as generated."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from support.alert_rules import promtool
from support.metrics_page import documented, expressions, family
from support.recordings import RULES

from tools import dashboards
from tools.metrics_reference import everything

_METRIC: Final = r"\b(?:penstock|process)_\w+"
_SELECTOR: Final = re.compile(rf"({_METRIC})(?:\{{([^}}]*)\}})?")
_GROUPING: Final = re.compile(r"\bby \(([^)]*)\)")
OF_TARGETS: Final = frozenset({"namespace", "cluster", "instance", "job"})
"""Labels that Prometheus and the chart's PodMonitors add."""


def panels() -> Iterator[Any]:
    for text in dashboards.files().values():
        yield from json.loads(text)["panels"]


def queries() -> list[str]:
    """Of all dashboards."""
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def rules() -> list[str]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


def unknown(text: str) -> set[str]:
    """Metrics that nobody exports."""
    named = {family(name) for name in re.findall(_METRIC, text)}
    assert named
    return named - everything().keys()


def strange_labels(expression: str) -> set[str]:
    """Labels that its metrics do not have, wherever it asks for them."""
    known, found = set(OF_TARGETS), set()
    for name, matchers in _SELECTOR.findall(expression):
        own = documented()[family(name)] | ({"le"} if name.endswith("_bucket") else frozenset())
        known |= own
        found |= set(re.findall(r"(\w+) *(?:=~|!~|!=|=)", matchers)) - own - OF_TARGETS
    grouped = {word.strip() for words in _GROUPING.findall(expression) for word in words.split(",")}
    return found | (grouped - known)


def test_metrics_exist() -> None:
    for text in ("\n".join(rules()), "\n".join(queries()), "\n".join(expressions())):
        assert unknown(text) == set()


def test_a_metric_that_nobody_exports_is_noticed() -> None:
    assert unknown("rate(penstock_bytes_in_totals[5m])") == {"penstock_bytes_in_totals"}


@pytest.mark.parametrize("found", [rules, queries, expressions])
def test_metrics_have_the_labels_that_are_asked_for(found: Any) -> None:
    assert {one: strange for one in found() if (strange := strange_labels(one))} == {}


@pytest.mark.parametrize(
    "expression",
    [
        'penstock_produce_errors_total{code="X"}',
        "sum by (topic) (rate(penstock_bytes_in_total[5m]))",
        "sum by (le) (rate(penstock_bytes_in_total[5m]))",
    ],
)
def test_a_label_that_a_metric_lacks_is_noticed(expression: str) -> None:
    assert len(strange_labels(expression)) == 1


def test_a_legend_names_labels_that_are_left() -> None:
    for panel in panels():
        for target in panel["targets"]:
            grouped = set(re.findall(r"\w+", " ".join(_GROUPING.findall(target["expr"]))))
            names = [family(name) for name, _ in _SELECTOR.findall(target["expr"])]
            own = OF_TARGETS.union(*(documented()[name] for name in names))
            left = grouped or own
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= left, target


def test_prometheus_parses_every_query(tmp_path: Path) -> None:
    found = [*queries(), *expressions()]
    assert complaint(recording_rules(tmp_path, found)) == ""
    wrong = recording_rules(tmp_path, [*found, "sum by (penstock_leaders"])
    assert "parse error" in complaint(wrong)


def test_prometheus_parses_the_alerts_and_what_they_say(tmp_path: Path) -> None:
    assert complaint(RULES) == ""
    wrong = tmp_path / "alerts.yaml"
    wrong.write_text(RULES.read_text().replace("{{ end }}", ""))
    assert "template" in complaint(wrong)


def recording_rules(folder: Path, found: list[str]) -> Path:
    """A file of them. Grafana's variables have values here."""
    made = [
        {"record": f"query_{number}", "expr": text.replace("$__rate_interval", "5m")}
        for number, text in enumerate(found)
    ]
    path = folder / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": made}]}))
    return path


def complaint(path: Path) -> str:
    """Of promtool; empty if there is none."""
    done = subprocess.run(
        [promtool(), "check", "rules", "--lint=none", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr if done.returncode else ""


def test_dashboards_are_as_generated() -> None:
    assert dashboards.main(["--check"]) == 0


def test_there_are_five_with_ids_of_their_own() -> None:
    made = [json.loads(text) for text in dashboards.files().values()]
    assert len({each["uid"] for each in made}) == len(made) == 5


def test_a_panel_has_a_title_of_its_own_a_unit_and_legends() -> None:
    for text in dashboards.files().values():
        found = json.loads(text)["panels"]
        titles = [panel["title"] for panel in found]
        assert len(set(titles)) == len(titles), titles
        for panel in found:
            assert panel["title"]
            assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
            assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]


UNITS: Final = {"short", "bytes", "Bps", "cps", "reqps", "s", "percentunit"}
"""Grafana's names of the units that panels use."""
