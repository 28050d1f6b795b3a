"""The benchmark of consumer groups: what it counts as a pause, that it runs, that it ends."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from support.benchmarks import running
from support.descendants import descendants_of, still_running
from support.waiting import wait_exit, wait_until

from benchmarks.group_members import longest_pause

COMMAND = [sys.executable, "-m", "benchmarks.groups", "--quick", "--no-kafka", "--part=rebalance"]


@pytest.mark.parametrize(
    ("times", "pause"),
    [
        pytest.param([10, 11, 14, 15, 20], 5, id="the longest of all inside"),
        pytest.param([3, 12, 15, 20], 9, id="one that began before counts whole"),
        pytest.param([10, 13, 16, 19, 28], 9, id="one that goes on after the end counts whole"),
        pytest.param([1, 9, 9.5, 10, 12, 14, 16, 18, 20, 40], 2, id="those outside do not count"),
        pytest.param([2, 90], 88, id="nothing came in the window"),
        pytest.param([2], 18, id="nothing came any more"),
        pytest.param([], 10, id="nothing ever came"),
    ],
)
def test_a_pause_is_counted_whole(times: list[float], pause: float) -> None:
    assert longest_pause(times, 10, 20) == pause


def test_partitions_that_do_not_move_are_compared_with_a_quiet_group(tmp_path: Path) -> None:
    with running(COMMAND, tmp_path, {}) as process:
        assert wait_exit(process, 110) == 0, (tmp_path / "err").read_text()
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    shared = [line for line in lines if line["name"].startswith("until all have their share")]
    paused = [line for line in lines if line["name"].startswith("longest pause")]
    assert len(shared) == len(paused) == 2
    for line in shared:
        assert line["value"] > 0
        assert line["vs_value"] == 5.0
    for line in paused:
        assert line["value"] > 0.2, "a record comes every 0.4 s: less is not a pause but a mistake"
        assert line["vs"] == "the same members, nobody comes or goes"
    # Three members of twelve partitions and a fourth: three partitions move, nine do not.
    assert "a member joins: 3 of 12 partitions moved" in (tmp_path / "err").read_text()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["SIGINT", "SIGKILL"])
def test_nothing_is_left_running(tmp_path: Path, how: signal.Signals) -> None:
    """Not even a member that is frozen at that moment."""

    def shared() -> bool:
        said = (tmp_path / "err").read_text()
        assert process.poll() is None, said
        return "members share 12 partitions" in said

    started: dict[int, str] = {}
    with running(COMMAND, tmp_path, started) as process:
        wait_until(shared, what="members are at work", timeout_s=60)
        started |= descendants_of(process.pid)
        assert any("penstock_broker" in command for command in started.values())
        members = [pid for pid, command in started.items() if "benchmarks.group_members" in command]
        assert len(members) == 3
        os.kill(members[0], signal.SIGSTOP)
        process.send_signal(how)
        wait_exit(process, 60)
        wait_until(lambda: not still_running(started), what="everything has ended", timeout_s=40)
