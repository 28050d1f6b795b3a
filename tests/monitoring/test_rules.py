"""Every alert fires over its fault, as soon as docs/monitoring.md says, and in health none does.

The faults were made in real clusters, whose processes were scraped (`support.fault_recordings`);
so was one without a fault, where groups, transactions and compaction have much to do.
promtool is built once, from its Go module (`tools/promtool.sh`).
"""

import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest
import yaml
from support.alert_rules import fires, fires_in_health, recorded
from support.fault_recordings import FAULTS, SCENES
from support.fault_recordings import HEALTH as IN_HEALTH
from support.recordings import FAULTY_S, HEALTHY_S, RECORDED, RULES, Series

PAGE: Final = RULES.parents[4] / "docs" / "monitoring.md"
_ROW: Final = re.compile(r"\| `Penstock(\w+)` \| ([^|]+?) \| ([\d,]+) \|")
PATIENT_S: Final = 5_400
PATIENT: Final = ("compaction-held-up", "certificate-not-renewed", "authority-ends")
"""Their alerts wait for an hour or more."""


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


def test_an_election_before_its_controller_is_first_scraped_fires(tmp_path: Path) -> None:
    """The pod of a Deployment that starts after a power loss has another name, and its counters
    never were 0."""
    series, began = dict(recorded("power-lost")), HEALTHY_S + 1
    for name in [one for one in series if 'instance="controller-0"' in one]:
        values = series.pop(name)
        nothing: list[float | None] = [None] * len(values)
        series[name] = values[:HEALTHY_S] + nothing[HEALTHY_S:]
        renamed = name.replace("controller-0", "controller-of-another-name")
        series[renamed] = nothing[:began] + values[began:]
    assert "UncleanElection" in fires(series, shortened(tmp_path))


def test_no_alert_fires_while_groups_transactions_and_compaction_work(tmp_path: Path) -> None:
    assert fires_in_health(recorded(IN_HEALTH), shortened(tmp_path)) == set()


@pytest.mark.parametrize(
    ("alert", "limit", "stricter"),
    [
        ("GroupLagging", "lag_seconds) > 300", "lag_seconds) > 0.01"),
        ("RebalanceStorm", "[10m]) > 20", "[10m]) > 0.5"),
        ("TransactionOpenTooLong", "open_seconds) > 960", "open_seconds) > 0.01"),
        ("CompactionBehind", "waiting_seconds > 3600", "waiting_seconds >= 0"),
        ("ScrubLate", "scrub_age_seconds > 2 * (", "scrub_age_seconds > 0 * ("),
        ("TransactionNotFinished", "finishing_seconds) > 60", "finishing_seconds) >= 0"),
        ("GroupStuck", "committed_offset[10m])) == 0", "committed_offset[10m])) > 0"),
    ],
)
def test_an_alert_with_a_lower_limit_fires_in_health(
    alert: str, limit: str, stricter: str, tmp_path: Path
) -> None:
    """What it is silent over is there."""
    path = shortened(tmp_path)
    assert path.read_text().count(limit) == 1
    path.write_text(path.read_text().replace(limit, stricter))
    assert fires_in_health(recorded(IN_HEALTH), path) == {alert}


def test_the_recording_of_health_has_what_was_done() -> None:
    series = recorded(IN_HEALTH)

    def highest(start: str) -> float:
        return max(one or 0 for name in series if name.startswith(start) for one in series[name])

    def grows(start: str, label: str = "") -> bool:
        values = [series[name] for name in series if name.startswith(start) and label in name]
        return any((one[-1] or 0) > (one[0] or 0) for one in values)

    assert {len(one) for name, one in series.items() if "operator" not in name} == {
        HEALTHY_S + FAULTY_S
    }
    assert highest("penstock_group_members{") == 2
    assert highest("penstock_group_partition_lag_records{") > 0
    assert highest("penstock_group_partition_lag_seconds{") > 0
    assert highest("penstock_transactions_oldest_open_seconds{") > 0
    assert highest("penstock_compaction_waiting_seconds{") > 0
    assert grows("penstock_group_committed_offset{")
    assert grows("penstock_group_rebalances_total{"), "one joins, and leaves"
    assert grows("penstock_transactions_ended_total{", 'outcome="commit"')
    assert grows("penstock_transactions_ended_total{", 'outcome="abort"')
    assert grows("penstock_compaction_passes_total{")


@pytest.mark.parametrize("why", ["paused", "hibernated"])
def test_a_cluster_that_is_to_be_like_that_is_left_alone(why: str, tmp_path: Path) -> None:
    series = recorded("pod-not-ready")
    (paused,) = [name for name in series if name.startswith("penstock_operator_cluster_paused")]
    wanted: Series = {paused.replace("_paused", f"_{why}"): [1.0] * len(series[paused])}
    found = fires({**series, **wanted}, shortened(tmp_path))
    assert found.keys() == table()["pod-not-ready"].keys() - {"ClusterNotReady"}


def test_a_scrub_that_is_only_asked_for_is_never_late(tmp_path: Path) -> None:
    series = recorded("scrub-held-up")
    intervals = [name for name in series if name.startswith("penstock_scrub_interval_seconds")]
    assert len(intervals) == 3
    none: Series = {name: [0.0] * len(series[name]) for name in intervals}
    found = fires({**series, **none}, shortened(tmp_path))
    assert found.keys() == table()["scrub-held-up"].keys() - {"ScrubLate"}


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
    assert set(table()) == set(FAULTS)
    assert set(SCENES) == {path.stem for path in RECORDED.glob("*.json")}
    for scene in SCENES:
        assert f"- `{scene}`: " in PAGE.read_text(), "it says what was done"
