"""Every alert fires over its fault, as soon as docs/monitoring.md says, and in health none does.

The faults were made in real clusters, whose processes were scraped (`support.fault_recordings`).
promtool is built once, from its Go module (`tools/promtool.sh`).
"""

import re
import shutil
from functools import cache
from pathlib import Path
from typing import Final

import pytest
import yaml
from support.alert_rules import fires, recorded
from support.fault_recordings import FAULTS
from support.recordings import RECORDED, RULES

PAGE: Final = RULES.parents[4] / "docs" / "monitoring.md"
_ROW: Final = re.compile(r"\| `Penstock(\w+)` \| ([^|]+?) \| ([\d,]+) \|")
PATIENT_S: Final = 5_400
PATIENT: Final = ("compaction-held-up", "certificate-not-renewed", "authority-ends")
"""Their alerts wait for an hour or more."""
pytestmark = pytest.mark.skipif(shutil.which("go") is None, reason="promtool is built with Go")


@cache
def table() -> dict[str, dict[str, int]]:
    """By fault, as the page has it: the alerts, and after how many seconds they fire."""
    found: dict[str, dict[str, int]] = {}
    for alert, fault, seconds in _ROW.findall(PAGE.read_text()):
        found.setdefault(fault, {})[alert] = int(seconds.replace(",", ""))
    return found


def shortened(folder: Path) -> Path:
    """The rules, with a minute in place of seven days, which are 40,000 steps."""
    path = folder / "alerts.yaml"
    path.write_text(RULES.read_text().replace("for: 7d", "for: 1m"))
    return path


def fired(fault: str, rules: Path) -> dict[str, int]:
    patience = {"fault_s": PATIENT_S} if fault in PATIENT else {}
    return fires(recorded(fault), rules, **patience)


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_fault_fires_what_the_page_says_and_nothing_else(fault: str, tmp_path: Path) -> None:
    """An alert that fires in health, before the fault, has negative seconds."""
    assert fired(fault, shortened(tmp_path)) == table()[fault]


def test_a_paused_cluster_that_is_not_ready_is_left_alone(tmp_path: Path) -> None:
    series = recorded("pod-not-ready")
    (paused,) = [name for name in series if name.startswith("penstock_operator_cluster_paused")]
    found = fires({**series, paused: [1.0] * len(series[paused])}, shortened(tmp_path))
    assert found.keys() == table()["pod-not-ready"].keys() - {"ClusterNotReady"}


def test_a_broken_rule_is_seen(tmp_path: Path) -> None:
    """Otherwise all of the above would say nothing."""
    path = shortened(tmp_path)
    path.write_text(path.read_text().replace("broker_alive) == 0", "broker_alive) == 2"))
    found = fires(recorded("broker-killed"), path)
    assert found.keys() == table()["broker-killed"].keys() - {"BrokerDown"}


def test_the_page_has_every_alert_and_every_fault() -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    alerts = {rule["alert"].removeprefix("Penstock") for group in groups for rule in group["rules"]}
    assert {alert for found in table().values() for alert in found} == alerts
    assert set(table()) == set(FAULTS) == {path.stem for path in RECORDED.glob("*.json")}
    for fault in FAULTS:
        assert f"- `{fault}`: " in PAGE.read_text(), "it says what was done"
