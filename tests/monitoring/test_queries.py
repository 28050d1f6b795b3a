"""Alerts, dashboards and docs/metrics.md read metrics that exist; dashboards are generated."""

import json
import re
import subprocess
from pathlib import Path
from typing import Final

from support.alert_rules import ROOT, promtool
from support.exported import broker_metrics, controller_metrics, operator_metrics
from support.fault_recordings import RULES

from tools import dashboards
from tools.snippets.page import read_page

_NAME: Final = re.compile(r"\b(?:penstock|process)_\w+")


def unknown(text: str, folder: Path) -> set[str]:
    """Metrics that nobody exports."""
    everything = broker_metrics(folder) | controller_metrics() | operator_metrics()
    named = {re.sub(r"_(bucket|count|sum)$", "", name) for name in _NAME.findall(text)}
    assert named
    return named - everything


def test_alerts_read_metrics_that_exist(tmp_path: Path) -> None:
    assert unknown(RULES.read_text(), tmp_path) == set()


def test_dashboards_read_metrics_that_exist(tmp_path: Path) -> None:
    queries = [
        target["expr"]
        for text in dashboards.files().values()
        for panel in json.loads(text)["panels"]
        for target in panel["targets"]
    ]
    assert unknown("\n".join(queries), tmp_path) == set()


def queries_of_the_page() -> list[str]:
    """A query begins a line, and goes on in those that are indented."""
    text = "\n".join(
        re.sub(r" +#.*", "", snippet.text)
        for snippet in read_page(ROOT, "docs/metrics.md")
        if snippet.language == "promql"
    )
    return [query for query in re.split(r"\n+(?! )", text) if query]


def test_queries_of_the_page_read_metrics_that_exist(tmp_path: Path) -> None:
    assert unknown("\n".join(queries_of_the_page()), tmp_path) == set()


def test_prometheus_reads_the_queries_of_the_page(tmp_path: Path) -> None:
    rules = [
        {"alert": f"Query{number}", "expr": query.replace("…", "")}
        for number, query in enumerate(queries_of_the_page())
    ]
    assert len(rules) >= 10
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"groups": [{"name": "page", "rules": rules}]}))
    done = subprocess.run(
        [promtool(), "check", "rules", file], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_metric_that_nobody_exports_is_noticed(tmp_path: Path) -> None:
    assert unknown("rate(penstock_bytes_in_totals[5m])", tmp_path) == {"penstock_bytes_in_totals"}


def test_dashboards_are_as_generated() -> None:
    assert dashboards.main(["--check"]) == 0


def test_there_are_five_with_ids_of_their_own() -> None:
    made = [json.loads(text) for text in dashboards.files().values()]
    assert len({each["uid"] for each in made}) == len(made) == 5
