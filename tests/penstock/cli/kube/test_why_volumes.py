"""`kubectl penstock why` about a volume that is lost, or being replaced."""

from datetime import UTC, datetime

import pytest

from penstock.cli.kube.snapshot import Snapshot
from penstock.cli.kube.why import explain


@pytest.mark.parametrize(
    ("condition", "reason", "what", "do"),
    [
        ("Stalled", "VolumeLost", "is stuck and needs your help", "start the node with its disk"),
        ("Reconciling", "VolumeLost", "is being reconciled", "start the node with its disk"),
        ("Reconciling", "ReplacingVolume", "is being reconciled", "nothing, unless it says what"),
        ("Stalled", "VolumeDeleted", "is stuck and needs your help", "move its records to other"),
        ("Stalled", "NameTaken", "is stuck and needs your help", None),
    ],
)
def test_a_volume_that_is_lost_or_replaced_comes_with_what_to_do(
    condition: str, reason: str, what: str, do: str | None
) -> None:
    said = {"type": condition, "status": "True", "reason": reason, "message": "broker 1"}
    cluster = {
        "metadata": {"name": "flights", "namespace": "ns", "generation": 1},
        "status": {
            "observedGeneration": 1,
            "conditions": [{"type": "Ready", "status": "True"}, said],
        },
    }
    found = explain(Snapshot(now=datetime.now(UTC), cluster=cluster)).findings
    (one,) = [each for each in found if each.code == reason]
    assert one.what == f"{what}: broker 1 ({reason})"
    assert (one.do or "").startswith(do or "")
    assert (one.do is None) is (do is None)
