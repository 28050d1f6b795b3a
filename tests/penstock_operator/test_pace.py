"""When a status is written: what changes at once, what only counts every ten seconds."""

from typing import Any

import pytest

from penstock_operator.pace import PROGRESS_S, Due, Pace

NOW = "2026-01-01T00:00:00Z"


def status(reason: str = "Draining", message: str = "38 left", **fields: Any) -> dict[str, Any]:
    row = {"type": "Reconciling", "status": "True", "reason": reason, "message": message}
    return {"phase": "Settling", "conditions": [row], "message": message, **fields}


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_what_is_there_already_is_not_written() -> None:
    pace = Pace(Clock())
    assert pace.due("u", {**status(), "older": 1}, status()) is Due.NO
    assert pace.due("u", {**status(), "moves": {"running": 1}}, status(moves={"running": 1})) is (
        Due.NO
    )
    unknown = status(moves={"running": 1, "bytesLeft": None})
    assert pace.due("u", status(moves={"running": 1}), unknown) is Due.NO, "None is no key"
    assert pace.due("u", status(moves={"running": 1, "bytesLeft": 7}), unknown) is Due.NOW


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (status(), status(message="37 left")),
        (status(moves={"running": 3}), status(moves={"running": 2})),
        (status(moving="3 of 9"), status(moving="4 of 9")),
        (
            status(
                reason="PodMissing", message="no pod; broker 3, 14.2 GiB at 39 MiB/s, about 6 min"
            ),
            status(reason="PodMissing", message="no pod; broker 3, 900 MiB to copy"),
        ),
        (
            status(drains=[{"broker": 3, "state": "Draining", "replicas": 9}]),
            status(drains=[{"broker": 3, "state": "Draining", "replicas": 8, "bytesLeft": 1}]),
        ),
        (
            status(drains=[{"broker": 3, "state": "Draining", "bytesTotal": 9, "eta": NOW}]),
            status(drains=[{"broker": 3, "state": "Draining", "bytesTotal": 8}]),
        ),
        (
            status(brokerStatuses=[{"id": 3, "replicas": 9, "ready": True}]),
            status(brokerStatuses=[{"id": 3, "replicas": 8, "ready": True}]),
        ),
        (
            status(brokerStatuses=[{"id": 3, "bytes": 9}]),
            status(brokerStatuses=[{"id": 3, "bytes": 8}]),
        ),
    ],
)
def test_numbers_of_moves_are_written_every_ten_seconds(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    clock = Clock()
    pace = Pace(clock)
    assert pace.due("u", before, after) is Due.NOW, "the first is"
    assert pace.due("u", before, after) is Due.LATER
    assert pace.due("other", before, after) is Due.NOW
    clock.now_s += PROGRESS_S - 0.1
    assert pace.due("u", before, after) is Due.LATER
    clock.now_s += 0.1
    assert pace.due("u", before, after) is Due.NOW


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (status(), status(reason="DrainBlocked", message="no room")),
        (status(reason="PodMissing"), status(reason="PodMissing", message="another pod")),
        (status(), {**status(), "phase": "Ready"}),
        (
            status(drains=[{"broker": 3, "state": "Draining"}]),
            status(drains=[{"broker": 3, "state": "Proving"}]),
        ),
        (
            status(brokerStatuses=[{"id": 3, "ready": True}]),
            status(brokerStatuses=[{"id": 3, "ready": False}]),
        ),
        (
            status(brokerStatuses=[{"id": 3, "bytes": 9}]),
            status(brokerStatuses=[{"id": 3, "bytes": 9, "damaged": 1}]),
        ),
    ],
)
def test_everything_else_is_written_at_once(before: dict[str, Any], after: dict[str, Any]) -> None:
    pace = Pace(Clock())
    assert pace.due("u", {}, before) is Due.NOW
    assert pace.due("u", before, after) is Due.NOW
