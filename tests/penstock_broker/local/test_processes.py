"""Naming processes, ports, the state directory: the small parts of local mode."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from penstock.errors import MisuseError
from penstock_broker.local.processes import (
    ProcessIdentity,
    identify,
    identify_self,
    is_alive,
    send_signal,
    signals_deferred,
)
from penstock_broker.local.remote import down, status
from penstock_broker.local.state import LocalState, RecordedProcess, StateDirectory
from penstock_broker.local.sweep import end_leftovers
from penstock_broker.local.watch import FIRST_PAUSE_S, LONGEST_PAUSE_S, STEADY_S, RestartPause

ORDINARY_USER: Final = (
    () if os.geteuid() else ("setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner")
)
"""Before a command: modes of files hold for it, also where tests run as root."""


def sleeper() -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])


class TestIdentity:
    def test_a_running_process_is_alive_until_it_ends(self) -> None:
        child = sleeper()
        identity = identify(child.pid)
        assert identity is not None
        assert is_alive(identity)
        assert send_signal(identity, signal.SIGKILL)
        child.wait(40)
        assert not is_alive(identity)
        assert not send_signal(identity, signal.SIGKILL)

    def test_a_zombie_is_not_alive(self) -> None:
        child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
        identity = identify(child.pid)
        assert child.stdout is not None
        child.stdout.read()  # returns when the process has closed it, by ending
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert identity is None or not is_alive(identity)
        child.wait(40)
        child.stdout.close()

    def test_a_recycled_pid_is_never_signalled(self) -> None:
        child = sleeper()
        try:
            earlier = ProcessIdentity(child.pid, "another start time")
            assert not is_alive(earlier)
            assert not send_signal(earlier, signal.SIGKILL)
            assert child.poll() is None
        finally:
            child.kill()
            child.wait(40)


class TestSignals:
    def test_a_signal_waits_until_the_block_has_ended(self) -> None:
        done = []

        def interrupted() -> None:
            with signals_deferred():
                os.kill(os.getpid(), signal.SIGINT)
                done.append("block")
            done.append("behind")

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert done == ["block"]

    def test_handlers_are_as_before(self) -> None:
        before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        with signals_deferred():
            assert signal.getsignal(signal.SIGINT) != before[0]
        assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def state_of(supervisor: ProcessIdentity, *processes: RecordedProcess) -> LocalState:
    return LocalState("flights", "running", "x.yaml", supervisor, processes, {})


def recorded(name: str, identity: ProcessIdentity | None) -> RecordedProcess:
    return RecordedProcess(name, identity, "127.0.0.1:9", "127.0.0.1:10")


class TestStateDirectory:
    def test_a_state_is_read_as_it_was_written(self, tmp_path: Path) -> None:
        directory = StateDirectory(tmp_path)
        written = state_of(identify_self(), recorded("broker-0", identify_self()))
        directory.write(written)
        assert directory.read() == written

    @pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 99}', '"x"'])
    def test_a_state_nobody_understands_is_no_state(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "state.json").write_text(text)
        assert StateDirectory(tmp_path).read() is None

    def test_a_state_that_cannot_be_read_is_no_state(self, tmp_path: Path) -> None:
        (tmp_path / "state.json").mkdir()
        assert StateDirectory(tmp_path).read() is None
        assert StateDirectory(tmp_path / "state.json" / "x").read() is None

    def test_only_one_holds_the_lock(self, tmp_path: Path) -> None:
        with StateDirectory(tmp_path).lock() as first, StateDirectory(tmp_path).lock() as second:
            assert (first, second) == (True, False)
        with StateDirectory(tmp_path).lock() as again:
            assert again

    def test_purge_removes_what_is_ours_and_nothing_else(self, tmp_path: Path) -> None:
        directory = StateDirectory(tmp_path / "x")
        directory.create()
        directory.write(state_of(identify_self()))
        for name in ("controller", "broker-0", "broker-17", "photos"):
            (directory.root / name).mkdir()
        directory.purge()
        assert [entry.name for entry in directory.root.iterdir()] == ["photos"]
        (directory.root / "photos").rmdir()
        directory.write(state_of(identify_self()))
        directory.purge()
        assert not directory.root.exists()

    def test_purge_removes_nothing_where_no_cluster_ever_was(self, tmp_path: Path) -> None:
        (tmp_path / "logs").mkdir()
        with pytest.raises(MisuseError, match="there is no local cluster here"):
            StateDirectory(tmp_path).purge()
        assert (tmp_path / "logs").exists()

    def test_a_purge_says_what_it_cannot_remove_and_can_be_repeated(self, tmp_path: Path) -> None:
        directory = StateDirectory(tmp_path / "x")
        directory.create()
        data = directory.data("broker-0")
        data.mkdir()
        (data / "records.sst").touch()
        data.chmod(0o500)
        purge = (
            "import sys; from pathlib import Path; "
            "from penstock_broker.local.state import StateDirectory; "
            "StateDirectory(Path(sys.argv[1])).purge()"
        )
        done = subprocess.run(
            [*ORDINARY_USER, sys.executable, "-c", purge, directory.root],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        said = "records.sst: cannot be removed: Permission denied; records may be left"
        assert done.returncode == 1
        assert said in done.stderr.splitlines()[-1]
        assert (data / "records.sst").exists()
        data.chmod(0o700)
        directory.purge()
        assert not directory.root.exists()

    def test_nothing_is_purged_while_a_cluster_runs_or_starts(self, tmp_path: Path) -> None:
        directory = StateDirectory(tmp_path / "x")
        directory.create()
        with directory.lock(), pytest.raises(MisuseError, match="runs or starts here"):
            directory.purge()
        assert directory.marker_file.exists()
        directory.purge()
        assert not directory.root.exists()

    def test_a_directory_that_cannot_be_made_is_one_message(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(MisuseError, match="--data-dir"):
            StateDirectory(tmp_path / "file" / "below").create()


class TestRecycledPids:
    """`state.json` names pids that now belong to somebody else: a reboot, a long time."""

    def test_they_count_as_down_and_are_left_alone(self, tmp_path: Path) -> None:
        stranger = sleeper()
        try:
            stale = ProcessIdentity(stranger.pid, "an earlier boot")
            StateDirectory(tmp_path).write(
                state_of(stale, recorded("controller", stale), recorded("broker-0", stale))
            )
            seen = status(tmp_path)
            assert seen.phase == "down"
            assert not any(process.is_up for process in seen.processes)
            assert down(tmp_path) == "flights"
            assert stranger.poll() is None
            assert StateDirectory(tmp_path).read() is None
        finally:
            stranger.kill()
            stranger.wait(40)

    def test_leftovers_of_ours_are_ended(self) -> None:
        child = sleeper()
        identity = identify(child.pid)
        assert identity is not None
        end_leftovers(state_of(identity, recorded("broker-0", identity)), timeout_s=0.1)
        assert child.wait(40) == -signal.SIGKILL


class TestRestartPause:
    def test_the_pause_doubles_while_it_crashes_and_is_bounded(self) -> None:
        pause, now_s, pauses = RestartPause(), 0.0, []
        for _ in range(10):
            began = now_s
            while not pause.is_due(False, now_s):
                now_s += 0.05
            pauses.append(now_s - began)
            assert not pause.is_due(True, now_s)
        assert pauses[0] == pytest.approx(FIRST_PAUSE_S, abs=0.06)
        assert pauses[1] == pytest.approx(2 * FIRST_PAUSE_S, abs=0.06)
        assert pauses[-1] == pytest.approx(LONGEST_PAUSE_S, abs=0.06)

    def test_a_process_that_ran_steadily_starts_over(self) -> None:
        pause = RestartPause()
        pause.is_due(False, 0.0)
        assert pause.is_due(False, FIRST_PAUSE_S)
        pause.is_due(True, 1.0)
        pause.is_due(True, 1.0 + STEADY_S)
        pause.is_due(False, 100.0)
        assert pause.is_due(False, 100.0 + FIRST_PAUSE_S)


def test_the_state_file_is_readable_by_people(tmp_path: Path) -> None:
    StateDirectory(tmp_path).write(state_of(identify_self(), recorded("broker-0", None)))
    document = json.loads((tmp_path / "state.json").read_text())
    assert document["format"] == 1
    assert document["processes"][0]["name"] == "broker-0"
