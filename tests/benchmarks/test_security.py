"""The benchmark of security: its parts run, and print their figures."""

import json
import sys
from pathlib import Path

from support.benchmarks import running
from support.waiting import wait_exit


def test_small_appends_a_flood_and_decisions_print_their_figures(tmp_path: Path) -> None:
    parts = ["--only=small", "--only=flood", "--only=decisions"]
    command = [sys.executable, "-m", "benchmarks.security", "--quick", *parts]
    with running(command, tmp_path, {}) as process:
        assert wait_exit(process, 240) == 0, (tmp_path / "err").read_text()
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    small = [
        f"small appends, {clients}, {what}"
        for clients in ("1 client", "16 clients")
        for what in ("acknowledged", "p50", "CPU of three brokers per ack")
    ]
    decisions = [f"a decision by rules, {when}" for when in ("for the first time", "made before")]
    flood = [f"small appends, 1 client, while bad tokens arrive, {what}" for what in ("p50", "p99")]
    wanted = [*small, *flood, "bad tokens refused", *decisions]
    assert [line["name"] for line in lines] == wanted
    assert {line["vs"] for line in lines[:6]} == {"plaintext"}
