"""Judging takes memory for runs, not for records (`check.py`)."""

import json
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.verify.check import Checker
from penstock.verify.history import Event

ROOT = Path(__file__).parents[3]
RECORDS = 2_000_000
SLACK_MB = 4
"""What two runs of one program differ by; holding the 80,000 events would take ten times that."""


def test_a_hundred_times_the_records_take_a_few_bytes_more_per_run() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.verify_memory", "--records", str(RECORDS)],
        cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    memory = json.loads(ran.stdout.splitlines()[0])
    assert memory["vs"] == "bound"
    assert memory["value"] < memory["vs_value"] + SLACK_MB


def transactions(count: int, *, bank: bool) -> Iterator[Event]:
    """So many, all committed; each has a record of either stream, one per partition."""
    yield {"e": "start", "run": 1, "topic": "t", "acks": "ALL"}
    for number in range(count):
        runs = [
            {"s": stream, "q": number, "n": 1, "t": 0.0, "p": stream, "o": number, "x": number}
            | ({"a": 6 * stream - 3, "k": number} if bank else {})
            for stream in (0, 1)
        ]
        yield from ({"e": kind, **run} for kind in ("send", "ack") for run in runs)
        yield {"e": "ended-tx", "x": number, "how": "committed", "t": 0.0}
        yield from ({"e": "final", "r": "final", **run} for run in runs)
    for partition in (0, 1):
        yield {"e": "ends", "p": partition, "lo": 0, "hi": count, "hw": count}


def peak_bytes(count: int, *, bank: bool) -> int:
    """What judging them takes at most."""
    judge = Checker()
    tracemalloc.start()
    try:
        for event in transactions(count, bank=bank):
            judge.first_pass(event)
        judge.settle()
        for event in transactions(count, bank=bank):
            judge.second_pass(event)
        verdict = judge.finish()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert verdict.passed, verdict.breaches
    assert (verdict.committed, verdict.transfers) == (count, count if bank else 0)
    return peak


@pytest.mark.parametrize(("bank", "bytes_each"), [(False, 4), (True, 24)])
def test_a_transaction_takes_memory_until_it_has_ended(*, bank: bool, bytes_each: int) -> None:
    few, many = 1_000, 10_000
    more = peak_bytes(many, bank=bank) - peak_bytes(few, bank=bank)
    assert more < bytes_each * (many - few)
