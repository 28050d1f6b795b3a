"""docs/metrics.md names what brokers, controllers and the operator export: all of it, and nothing
else."""

import re
from pathlib import Path

import pytest
from support.exported import broker_metrics, controller_metrics, operator_metrics

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def listed() -> set[str]:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def test_the_page_lists_every_metric_and_no_other(tmp_path: Path) -> None:
    everything = broker_metrics(tmp_path) | controller_metrics() | operator_metrics()
    assert listed() == everything


@pytest.mark.parametrize("names", [controller_metrics, operator_metrics])
def test_a_process_names_its_own_metrics_after_itself(names: object) -> None:
    assert callable(names)
    own = names()
    role = "controller" if names is controller_metrics else "operator"
    shared = {name for name in own if not name.startswith(f"penstock_{role}_")}
    assert {name for name in shared if not name.startswith("process_")} <= {
        "penstock_build_info",
        "penstock_event_loop_lag_seconds",
    }
