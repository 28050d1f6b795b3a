"""The benchmark of attacks: its parts run, and print their figures."""

import json
import signal
import sys
from pathlib import Path

from support.benchmarks import check_nothing_is_left, running
from support.waiting import wait_exit

COMMAND = [sys.executable, "-m", "benchmarks.attacks", "--quick"]
RULES = [
    f"{stream} goes on after its rule is removed, {what}"
    for stream in ("Subscribe", "ProduceStream")
    for what in ("median", "worst")
]
BOMBS = [
    *(
        f"a cheap call while bombs are opened, {what}"
        for what in ("p99", "longest", "longest of all rounds")
    ),
    "bombs refused",
]
STREAMS = [
    *(f"{what} that one host holds" for what in ("idle streams", "half-open handshakes")),
    *(
        f"{attack}, {what}"
        for attack in ("idle streams", "half-open handshakes")
        for what in (
            "longest probe",
            "longest of cheap calls",
            "small appends of others, p50",
            "small appends of others, p99",
        )
    ),
]
QUOTA = [
    *(
        f"6 neighbours of somebody at 100 times a quota, {what}"
        for what in ("acknowledged", "p50", "p99")
    ),
    "sent by somebody with a quota",
    "processor time of the attacker itself, on the same machine",
    "requests throttled of somebody with a quota",
]


def test_every_attack_prints_its_figures(tmp_path: Path) -> None:
    with running(COMMAND, tmp_path, {}) as process:
        assert wait_exit(process, 300) == 0, (tmp_path / "err").read_text()
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [line["name"] for line in lines] == [*RULES, *BOMBS, *STREAMS, *QUOTA]
    values = {line["name"]: line["value"] for line in lines}
    for name in ("bombs refused", *STREAMS[:2], QUOTA[-1]):
        assert values[name] > 0, "the attack took place"


def test_nothing_is_left_of_an_attack_that_is_interrupted(tmp_path: Path) -> None:
    check_nothing_is_left(
        [*COMMAND, "--only", "quota"], tmp_path, signal.SIGINT,
        busy="benchmarks.attackers", servers=["penstock_broker.local.child"],
    )  # fmt: skip
