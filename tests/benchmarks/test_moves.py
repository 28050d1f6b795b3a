"""The benchmark of moves: what producers notice is measured, and no ISR shrinks unseen."""

import json
import os
import sys
from pathlib import Path

from support.benchmarks import running
from support.waiting import wait_exit


def test_latencies_beside_moves_have_a_peer_and_shrinks_are_counted(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.moves", "--quick", "--only=latency"]
    with running(command, tmp_path, {}) as process:
        assert wait_exit(process, 240) == 0, (tmp_path / "err").read_text()
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    cores = f"cores that brokers and load keep busy beside a move, of {os.cpu_count()}"
    unlimited = cores.replace("a move", "a move without a limit")
    assert [(line["name"], line["vs"], line.get("goal")) for line in lines] == [
        ("acks=all p99 at half the top rate, beside a move", "without", "ratio ≤ 1.25"),
        (cores, "without", None),
        ("replicas that left an ISR beside a move", None, "0"),
        (
            "acks=all p99 at half the top rate, beside a move without a limit",
            "without",
            "ratio ≤ 2",
        ),
        (unlimited, "without", None),
        ("replicas that left an ISR beside a move without a limit", None, "0"),
    ]
    assert all(line["value"] > 0 for line in (*lines[0:2], *lines[3:5]))
    assert all(line["value"] >= 0 for line in lines[2::3])
