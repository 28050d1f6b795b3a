"""What a local cluster stores is its user's, and a purge removes nothing else.

Position: another user of the machine; or a folder that happens to have names like ours. Attempt:
read records and logs; lose the folder to `down --purge`. Outcome: nothing can be read or removed.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.errors import MisuseError
from penstock_broker.local.cluster import LocalCluster, LocalOptions
from penstock_broker.local.processes import identify_self
from penstock_broker.local.state import LocalState, StateDirectory

MANIFEST = """
apiVersion: penstock.dev/v1alpha1
kind: Cluster
metadata: {name: flights}
spec: {brokers: 1}
---
apiVersion: penstock.dev/v1alpha1
kind: Topic
metadata: {name: flights}
spec: {cluster: flights}
"""
OPEN_TO_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@pytest.fixture(autouse=True)
def generous_umask() -> Iterator[None]:
    """As most systems have it."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def readable_by_others(root: Path) -> list[str]:
    found = []
    for each in (root, *root.rglob("*")):
        with suppress(FileNotFoundError):  # of a store that is at work
            if each.lstat().st_mode & OPEN_TO_OTHERS:
                found.append(str(each))
    return found


def run_a_cluster(root: Path, manifest: Path) -> list[str]:
    """Starts a cluster with a topic; what others may read of it while it runs."""
    manifest.write_text(MANIFEST)
    options = LocalOptions(ready_timeout_s=120.0)
    with LocalCluster.from_manifest(manifest, data_dir=root, options=options):
        assert (root / "broker-0" / "meta.json").exists()
        return readable_by_others(root)


def test_records_and_logs_are_the_users_alone(tmp_path: Path) -> None:
    root = tmp_path / "deeper" / "cluster"
    open_ones = run_a_cluster(root, tmp_path / "flights.yaml")
    assert [each for each in open_ones if not each.endswith("/.penstock-local")] == []
    assert list(root.rglob("*.log"))


def test_so_are_those_that_an_earlier_release_left_open(tmp_path: Path) -> None:
    """In a folder of the user's own choice, which keeps its mode."""
    for name in ("controller", "broker-0", "logs"):
        (tmp_path / name).mkdir(0o755)
    (tmp_path / "lock").touch()
    (tmp_path / "broker-0" / "meta.json").write_text("{}")
    mode = tmp_path.stat().st_mode
    StateDirectory(tmp_path).create()
    assert tmp_path.stat().st_mode == mode
    for name in ("controller", "broker-0", "logs"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["logs", "controller", "broker-7"])
def test_a_folder_of_somebody_else_is_not_taken_over(tmp_path: Path, name: str) -> None:
    """Otherwise the purge, which is asked for the cluster, would remove it."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "photo").touch()
    with pytest.raises(MisuseError, match=f"has a folder '{name}' that no local cluster made"):
        StateDirectory(tmp_path).create()
    with pytest.raises(MisuseError, match="there is no local cluster here"):
        StateDirectory(tmp_path).purge()
    assert (tmp_path / name / "photo").exists()


def test_a_lock_and_a_state_of_another_program_prove_nothing(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("4711\n")
    (tmp_path / "state.json").write_text('{"format": 1}')
    (tmp_path / "broker-1").mkdir()
    with pytest.raises(MisuseError, match="there is no local cluster here"):
        StateDirectory(tmp_path).purge()
    assert (tmp_path / "broker-1").exists()


def test_names_that_begin_like_a_brokers_stay(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path / "d")
    directory.create()
    outside = tmp_path / "outside"
    (outside / "kept").mkdir(parents=True)
    for name in ("broker-0", "broker-config", "broker-", "broker-1.bak"):
        (directory.root / name).mkdir()
    (directory.root / "broker-2").symlink_to(outside)
    directory.purge()
    left = {entry.name for entry in directory.root.iterdir()}
    assert left == {"broker-config", "broker-", "broker-1.bak", "broker-2"}
    assert (outside / "kept").exists()


@pytest.mark.parametrize("proof", ["state", "data", "manifest"])
def test_a_cluster_of_an_earlier_release_can_be_purged(tmp_path: Path, proof: str) -> None:
    """It has no marker, but what only local mode makes."""
    root = tmp_path / "d"
    for name in ("controller", "broker-0", "logs"):
        (root / name).mkdir(parents=True)
    (root / "lock").touch()
    directory = StateDirectory(root)
    if proof == "state":
        state = LocalState("flights", "running", "f.yaml", identify_self(), (), {})
        directory.write(state)
    elif proof == "data":
        (root / "broker-0" / "meta.json").write_text("{}")
    else:
        (root / "manifest.yaml").touch()
    directory.purge()
    assert not root.exists()
