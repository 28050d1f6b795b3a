"""What judging a long history costs: memory and time of `penstock verify check`.

The history is synthetic, in the real format: keys in turn append runs to their partition, every
run is sent, acknowledged, seen by a live reader and read back. Memory is compared with its bound:
what the program takes for 1 % of the records, and 48 bytes per further run of the read-back.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common import figure, progress
from penstock.verify.history import Event, HistoryWriter

PARTITIONS = 6
KEYS = 16
RUN_RECORDS = 100
RUN_BYTES_MAX = 48
PROGRAM = """
import atexit, re, sys
from pathlib import Path
from penstock.cli.main import main

def report():
    peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
    print(int(peak[1]) * 1024, file=sys.stderr)

atexit.register(report)
main(sys.argv[1:])
"""


def events(records: int) -> Iterator[Event]:
    """A history of `records` records in which every promise is kept."""
    yield {"e": "start", "run": 1, "topic": "t", "acks": "ALL", "sync": "OS", "bytes": 128}
    ends = [0] * PARTITIONS
    for at, (run, where) in enumerate(_runs(records, ends)):
        yield {"e": "send", **run, "t": float(at)}
        yield {"e": "ack", **run, **where, "t": at + 0.4}
        yield {"e": "read", "r": "reader-0", **where, **run, "t": at + 0.8}
    for partition, end in enumerate(ends):
        yield {"e": "ends", "p": partition, "lo": 0, "hi": end}
    for run, where in _runs(records, [0] * PARTITIONS):
        yield {"e": "final", "r": "final", **where, **run}


def _runs(records: int, ends: list[int]) -> Iterator[tuple[Event, Event]]:
    """Stream, sequence, count of each run, and where it lies; moves `ends`."""
    sequences = [0] * KEYS
    left, turn = records, 0
    while left:
        key = turn % KEYS
        partition, count = key % PARTITIONS, min(RUN_RECORDS, left)
        yield {"s": key, "q": sequences[key], "n": count}, {"p": partition, "o": ends[partition]}
        sequences[key] += count
        ends[partition] += count
        left -= count
        turn += 1


def judge(records: int, scratch: Path) -> tuple[int, float]:
    """Writes a history and judges it in a process of its own: its peak memory, and seconds."""
    path = scratch / f"{records}.jsonl"
    with HistoryWriter(path) as history:
        for event in events(records):
            history.write(event)
    progress(f"{records:,} records are {path.stat().st_size / 1e6:,.0f} MB of history")
    command = [sys.executable, "-c", PROGRAM, "verify", "check", str(path), "-o", "json"]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    began = time.perf_counter()
    judged = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    seconds = time.perf_counter() - began
    path.unlink()
    if judged.returncode != 0 or f'"in_log": {records}' not in judged.stdout:
        raise SystemExit(
            f"the judge ended with {judged.returncode}:\n{judged.stdout}{judged.stderr}"
        )
    return int(judged.stderr.split()[-1]), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000_000)
    args = parser.parse_args()
    few = args.records // 100
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch:
        base, _ = judge(few, Path(scratch))
        peak, seconds = judge(args.records, Path(scratch))
    bound = base + RUN_BYTES_MAX * (args.records - few) / RUN_RECORDS
    name = f"{args.records:,} records"
    figure(f"peak memory of verify check, {name}", peak / 1e6, "MB", "bound", bound / 1e6)
    figure(f"time of verify check, {name}", seconds, "s")


if __name__ == "__main__":
    main()
