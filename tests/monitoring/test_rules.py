"""Every alert fires over its fault, as soon as docs/monitoring.md says, and in health none does.

Recorded faults were made in real clusters (`support.fault_recordings`). What cannot be made on one
machine, or takes hours, has a stated value: a recorded series, or one of the real exporter, with
another end. promtool is built once, from its Go module (`tools/promtool.sh`).
"""

import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

import pytest
import yaml
from support.alert_rules import fires, healthy, recorded
from support.fault_recordings import FAULTS, FAULTY_S, HEALTHY_S, RULES, Series, series_name

from penstock_operator.metrics import Metrics as OperatorMetrics

PAGE: Final = RULES.parents[4] / "docs" / "monitoring.md"
_ROW: Final = re.compile(r"\| `Penstock(\w+)` \| ([^|]+?) \| (\d+) \|")
DAY_S: Final = 86_400.0
pytestmark = pytest.mark.skipif(shutil.which("go") is None, reason="promtool is built with Go")


@cache
def table() -> dict[str, dict[str, int]]:
    """By fault, as the page has it: the alerts, and after how many seconds they fire."""
    found: dict[str, dict[str, int]] = {}
    for alert, fault, seconds in _ROW.findall(PAGE.read_text()):
        found.setdefault(fault, {})[alert] = int(seconds)
    return found


def goes_to(value: float, *names: str, among: str = "") -> Series:
    """Recorded series with these names, and a value that they never had there.

    `among`: a pattern of their labels.
    """
    return _ending([value] * FAULTY_S, names, among)


def grows(per_second: float, *names: str, among: str = "") -> Series:
    """As `goes_to`, of counters."""
    return _ending([per_second * second for second in range(FAULTY_S)], names, among, add=True)


def _ending(end: list[float], names: tuple[str, ...], among: str, *, add: bool = False) -> Series:
    made: Series = {}
    for series, values in healthy().items():
        name, _, labels = series.partition("{")
        if name in names:
            last = (values[-1] or 0.0) if add else 0.0
            changed = re.search(among, labels) is not None
            rest = [last + one for one in end] if changed else [values[-1]] * FAULTY_S
            made[series] = [*values, *rest]
    assert made, names
    return made


def added(name: str, before: float | None, after: float, **labels: str) -> Series:
    """A series that the recorded cluster does not export."""
    return {series_name(name, labels): [before] * HEALTHY_S + [after] * FAULTY_S}


def operator(change: Callable[[OperatorMetrics], None]) -> Series:
    """What the operator exports in health, and after `change`."""
    metrics = OperatorMetrics()
    metrics.leader.set(1)
    metrics.cluster("streams", "flights", ready=True)
    before = _exported(metrics)
    change(metrics)
    after = _exported(metrics)
    return {
        name: [before.get(name)] * HEALTHY_S + [after.get(name)] * FAULTY_S
        for name in before | after
    }


def _exported(metrics: OperatorMetrics) -> dict[str, float]:
    labels = {"cluster": "", "namespace": "penstock-system", "instance": "operator"}
    return {
        series_name(sample.name, {**labels, **sample.labels}): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name.startswith("penstock_operator_")
    }


SLOW: Final = r'le="(1\.0|2\.5|5\.0|10\.0|\+Inf)"'
SLOWER: Final = r'le="(2\.5|5\.0|10\.0|\+Inf)",method="Produce"'
STATED: Final[dict[str, Callable[[], Series]]] = {
    "two controllers say so": lambda: {
        **goes_to(1, "penstock_controller_active"),
        **added("penstock_controller_active", 0, 1, instance="controller-1"),
    },
    "no metadata store": lambda: goes_to(1, "penstock_controller_detached"),
    "a damaged replica": lambda: goes_to(1, "penstock_controller_damaged_replicas"),
    "5 GB free": lambda: {
        **goes_to(5e9, "penstock_disk_free_bytes"),
        **goes_to(100e9, "penstock_disk_total_bytes"),
        **goes_to(1e9, "penstock_disk_reserve_bytes"),
    },
    "0.5 GB free": lambda: {
        **goes_to(5e8, "penstock_disk_free_bytes"),
        **goes_to(1e9, "penstock_disk_reserve_bytes"),
    },
    "1 refusal per second": lambda: grows(1, "penstock_overloads_total"),
    "commits of 0.5 to 1 s": lambda: grows(1, "penstock_tick_seconds_bucket", among=SLOW),
    "produces of 1 to 2.5 s": lambda: grows(1, "penstock_request_seconds_bucket", among=SLOWER),
    "a pass fails every 100 s": lambda: grows(0.01, "penstock_compaction_failures_total"),
    "a log is due for 4,000 s": lambda: goes_to(4_000, "penstock_compaction_waiting_seconds"),
    "3 days left": lambda: added(
        "penstock_tls_certificate_expiry_seconds", 30 * DAY_S, 3 * DAY_S, certificate="own"
    ),
    "a copy stands for 700 s": lambda: goes_to(700, "penstock_controller_move_stalled_seconds"),
    "format 1": lambda: {
        **goes_to(1, "penstock_controller_metadata_format"),
        **goes_to(2, "penstock_controller_metadata_format_newest"),
    },
    "5 partitions left out": lambda: added(
        "penstock_group_partitions_left_out", 0, 5, instance="broker-0"
    ),
    "6 assignments a minute": lambda: grows(0.1, "penstock_group_rebalances_total"),
    "open for 1,000 s": lambda: goes_to(1_000, "penstock_transactions_oldest_open_seconds"),
    "not stored for 100 s": lambda: goes_to(100, "penstock_transactions_oldest_finishing_seconds"),
    "a Cluster not Ready": lambda: operator(
        lambda metrics: metrics.cluster("streams", "flights", ready=False)
    ),
    "a drain blocked": lambda: operator(
        lambda metrics: metrics.cluster("streams", "flights", ready=True, stalled="DrainBlocked")
    ),
    "no pass for 400 s": lambda: operator(lambda metrics: metrics.oldest_pass.set(400)),
    "no Lease": lambda: operator(lambda metrics: metrics.leader.set(0)),
}


def shortened(folder: Path) -> Path:
    """The rules, with a minute in place of an hour and of seven days, which are 40,000 steps."""
    path = folder / "alerts.yaml"
    path.write_text(re.sub("for: (7d|1h)", "for: 1m", RULES.read_text()))
    return path


def test_nothing_fires_in_health() -> None:
    assert fires(healthy()) == {}


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_recorded_fault_fires_what_the_page_says_and_nothing_else(fault: str) -> None:
    assert fires(recorded(fault)) == table()[fault]


@pytest.mark.parametrize("fault", sorted(STATED))
def test_a_stated_fault_fires_what_the_page_says_and_nothing_else(
    fault: str, tmp_path: Path
) -> None:
    assert fires(STATED[fault](), shortened(tmp_path)) == table()[f"stated: {fault}"]


def test_a_paused_cluster_that_is_not_ready_is_left_alone() -> None:
    paused = operator(
        lambda metrics: metrics.cluster("streams", "flights", ready=False, paused=True)
    )
    assert fires(paused) == {}


def test_a_broken_rule_is_seen(tmp_path: Path) -> None:
    """Otherwise all of the above would say nothing."""
    path = tmp_path / "alerts.yaml"
    path.write_text(RULES.read_text().replace("broker_alive) == 0", "broker_alive) == 2"))
    found = fires(recorded("broker-killed"), path)
    assert found.keys() == table()["broker-killed"].keys() - {"BrokerDown"}


def test_the_page_has_every_alert_and_every_fault() -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    alerts = {rule["alert"].removeprefix("Penstock") for group in groups for rule in group["rules"]}
    assert {alert for fired in table().values() for alert in fired} == alerts
    assert set(table()) == set(FAULTS) | {f"stated: {fault}" for fault in STATED}
