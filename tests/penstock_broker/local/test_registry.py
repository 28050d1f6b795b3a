"""The registry of local clusters: what it lists, and what it passes over."""

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import MisuseError
from penstock_broker.local.processes import ProcessIdentity, identify, identify_self
from penstock_broker.local.registry import (
    find_root,
    known_clusters,
    options_for,
    register,
    registry,
    running_clusters,
)
from penstock_broker.local.state import LocalState, StateDirectory

KILLED = ProcessIdentity(1, "an earlier boot")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def started(root: Path, cluster: str, supervisor: ProcessIdentity | None = None) -> Path:
    """What `up` leaves behind in `root`; this process is the supervisor unless told otherwise."""
    directory = StateDirectory(root)
    directory.create()
    who = supervisor or identify_self()
    directory.write(LocalState(cluster, "running", "m.yaml", who, (), {}))
    register(cluster, root)
    return root


def roots() -> list[Path]:
    return [one.root for one in running_clusters()]


def test_without_a_registry_nothing_runs(tmp_path: Path) -> None:
    assert known_clusters() == []
    with pytest.raises(MisuseError, match="no local cluster is running"):
        find_root(None, None)


def test_a_cluster_is_found_wherever_its_data_is(tmp_path: Path) -> None:
    elsewhere = started(tmp_path / "elsewhere", "flights")
    assert roots() == [elsewhere]
    assert find_root(None, None) == find_root("flights", None) == elsewhere
    assert options_for(elsewhere) == ""


def test_the_data_of_a_stopped_cluster_does_not_hide_one_of_the_same_name(tmp_path: Path) -> None:
    StateDirectory(registry() / "flights").create()
    elsewhere = started(tmp_path / "elsewhere", "flights")
    assert find_root(None, None) == elsewhere


def test_clusters_of_one_name_do_not_push_each_other_out(tmp_path: Path) -> None:
    default = started(registry() / "flights", "flights")
    here, there = (started(tmp_path / name, "flights") for name in ("here", "there it is"))
    other = started(tmp_path / "other", "other")
    assert set(roots()) == {default, here, there, other}
    assert find_root("other", None) == other
    assert options_for(other) == " --cluster other"
    assert options_for(there) == f" --data-dir '{there}'"
    with pytest.raises(
        MisuseError, match=f"3 local clusters; choose one: --data-dir {here} .running"
    ):
        find_root("flights", None)
    with pytest.raises(MisuseError, match="no local cluster none is running, but flights"):
        find_root("none", None)


def test_a_directory_registered_twice_counts_once(tmp_path: Path) -> None:
    started(tmp_path / "a", "flights")
    register("flights", tmp_path / "b" / ".." / "a")
    started(registry() / "x", "x")
    (tmp_path / "again").symlink_to(registry() / "x")
    register("x", tmp_path / "again")
    assert len(known_clusters()) == 2


def test_one_that_was_killed_is_meant_only_while_none_runs(tmp_path: Path) -> None:
    killed = started(tmp_path / "killed", "flights", KILLED)
    assert roots() == []
    assert [one.phase for one in known_clusters()] == ["down"]
    assert find_root(None, None) == killed
    running = started(tmp_path / "running", "flights")
    assert find_root(None, None) == running


def test_a_recycled_pid_is_not_the_supervisor(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        assert identify(stranger.pid) is not None
        started(tmp_path / "a", "flights", ProcessIdentity(stranger.pid, "an earlier boot"))
        assert roots() == []


def test_what_is_left_behind_in_the_registry_hurts_nobody(tmp_path: Path) -> None:
    elsewhere = started(tmp_path / "elsewhere", "flights")
    (registry() / "a file").write_text("")
    (registry() / "an empty directory").mkdir()
    (registry() / "garbage").mkdir()
    (registry() / "garbage" / "state.json").write_text("{")
    gone = registry() / "gone@123"
    gone.symlink_to(tmp_path / "gone")
    round_ = registry() / "round@123"
    round_.symlink_to(round_)
    assert roots() == [elsewhere]
    assert find_root(None, None) == elsewhere
    register("flights", elsewhere)
    assert not gone.is_symlink(), "a link to nowhere is removed by the next cluster"
    assert roots() == [elsewhere]


def test_a_stopped_cluster_must_be_named_to_be_purged(tmp_path: Path) -> None:
    kept = registry() / "flights"
    StateDirectory(kept).create()
    elsewhere = started(tmp_path / "elsewhere", "other")
    StateDirectory(elsewhere).forget()
    with pytest.raises(MisuseError, match="no local cluster flights is running"):
        find_root("flights", None)
    with pytest.raises(MisuseError, match=f"a stopped one: --data-dir {kept} or .* {elsewhere}"):
        find_root(None, None, stopped=True)
    assert find_root("flights", None, stopped=True) == kept
    assert find_root("other", None, stopped=True) == elsewhere


def test_without_a_home_there_is_no_cluster_to_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", _no_home)
    assert running_clusters() == []
    with pytest.raises(MisuseError, match="set XDG_STATE_HOME"):
        register("flights", tmp_path)


def _no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")
