"""What the chart makes for the Prometheus operator fits that operator's own types.

They come with its Go module, from which its CRDs are generated; `tools/monitoring_objects.sh`.
"""

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from support.manifests import ROOT
from support.missing import cannot_run

GOLDEN: Final = Path(__file__).parent / "golden"


def made() -> list[Any]:
    """By the chart, as the golden files have it."""
    return [
        each
        for path in sorted(GOLDEN.glob("*.yaml"))
        if not path.name.endswith(".values.yaml")
        for each in yaml.safe_load_all(path.read_text())
        if each is not None and each.get("apiVersion", "").startswith("monitoring.coreos.com/")
    ]


@pytest.fixture(scope="module")
def program() -> str:
    try:
        built = subprocess.run(
            [ROOT / "tools" / "monitoring_objects.sh"], capture_output=True, text=True, check=True
        )
    except subprocess.CalledProcessError as error:
        cannot_run(f"not built: {(error.stderr.strip() or 'too slow').splitlines()[-1]}")
    return built.stdout.strip()


def complaint(program: str, *objects: Any) -> str:
    """Empty if all fit."""
    lines = "\n".join(map(json.dumps, objects))
    done = subprocess.run([program], input=lines, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


def test_rules_and_monitors_fit(program: str) -> None:
    found = made()
    assert {each["kind"] for each in found} == {"PrometheusRule", "PodMonitor", "ServiceMonitor"}
    assert complaint(program, *found) == ""


def test_a_field_that_does_not_exist_and_a_wrong_type_are_noticed(program: str) -> None:
    rule = next(each for each in made() if each["kind"] == "PrometheusRule")
    assert "labelz" in complaint(program, {**rule, "spec": {"labelz": {}}})
    assert "groups" in complaint(program, {**rule, "spec": {"groups": {}}})
