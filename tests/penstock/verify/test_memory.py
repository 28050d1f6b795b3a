"""Judging takes memory for runs, not for records (`check.py`)."""

import json
import subprocess
import sys
from pathlib import Path

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
