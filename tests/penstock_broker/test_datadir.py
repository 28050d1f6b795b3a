"""Whose directory it is, whether it survived, and that nothing is lost when it is written."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.core.limits import GENERATIONS_KEPT, GENERATIONS_MAX
from penstock.core.types import BrokerId, ControllerEpoch
from penstock.errors import ClusterError, ErrorCode, MisuseError, PenstockError
from penstock_broker.datadir import DataDirectory
from penstock_broker.durable_files import DurableFile


def open_directory(
    path: Path, *, cluster: str | None = None, broker: int = 1, boot: str | None = None
) -> DataDirectory:
    return DataDirectory.open(path, cluster_id=cluster, broker_id=BrokerId(broker), boot_id=boot)


def stored(path: Path) -> dict[str, object]:
    found = json.loads((path / "meta.json").read_text())
    assert isinstance(found, dict)
    return found


def stored_generations(path: Path) -> tuple[str, ...]:
    found = json.loads((path / "generations.json").read_text())
    assert isinstance(found, list)
    return tuple(found)


def change(path: Path, **fields: object) -> None:
    (path / "meta.json").write_text(json.dumps({**stored(path), **fields}))


def test_a_new_directory_is_made_and_remembered(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "data"
    directory = open_directory(path)
    assert directory.fresh
    assert directory.cluster_id == ""
    assert directory.log_path.parent == path
    uuid.UUID(directory.directory_id)
    directory.close(clean=True)
    again = open_directory(path)
    assert not again.fresh
    assert again.directory_id == directory.directory_id
    again.close(clean=True)
    other = open_directory(tmp_path / "other")
    assert other.directory_id != directory.directory_id
    other.close(clean=True)


def test_the_first_registration_binds_it_to_a_cluster(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    directory.adopt_cluster_id("flights")
    directory.adopt_cluster_id("flights")
    with pytest.raises(MisuseError, match="belongs to cluster 'flights', not to 'orders'"):
        directory.adopt_cluster_id("orders")
    directory.close(clean=True)
    for cluster in (None, "flights"):
        directory = open_directory(tmp_path, cluster=cluster)
        assert directory.cluster_id == "flights"
        directory.close(clean=True)


def test_another_clusters_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    open_directory(tmp_path, cluster="flights").close(clean=True)
    before = stored(tmp_path)
    with pytest.raises(MisuseError, match="cluster 'flights', not to 'orders'") as caught:
        open_directory(tmp_path, cluster="orders")
    assert caught.value.code is ErrorCode.CLUSTER_ID_MISMATCH
    assert stored(tmp_path) == before
    open_directory(tmp_path, cluster="flights").close(clean=True)


def test_another_brokers_directory_is_refused_naming_both(tmp_path: Path) -> None:
    open_directory(tmp_path, broker=1).close(clean=True)
    with pytest.raises(MisuseError, match=r"broker 1, not to broker 2.*--broker-id 1"):
        open_directory(tmp_path, broker=2)


def test_two_brokers_on_one_directory_are_refused_with_one_clear_error(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    with pytest.raises(MisuseError, match=f"in use .*process {os.getpid()}"):
        open_directory(tmp_path)
    directory.close(clean=False)
    open_directory(tmp_path).close(clean=True)


def test_a_killed_broker_leaves_no_lock_and_an_intact_directory(tmp_path: Path) -> None:
    script = f"""
        import os, signal
        from pathlib import Path
        from penstock_broker.datadir import DataDirectory
        directory = DataDirectory.open(Path({str(tmp_path)!r}), cluster_id="flights", broker_id=1)
        directory.registration_accepted()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    directory = open_directory(tmp_path)
    assert directory.data_intact, "the kernel did not restart, so its page cache is there"
    assert directory.cluster_id == "flights"
    directory.close(clean=True)


# Runs of a broker: the boot id it sees, whether it registers, how it ends; then: intact?
CLEAN, KILLED = True, False


@pytest.mark.parametrize(
    ("runs", "intact"),
    [
        ([], False),  # a fresh directory holds nothing that was acknowledged before
        ([("boot-a", True, CLEAN)], True),
        ([("boot-a", True, KILLED)], True),
        ([("boot-z", True, CLEAN)], True),  # a clean stop survives a reboot
        ([("boot-z", True, KILLED)], False),
        ([("boot-z", True, KILLED), ("boot-a", True, KILLED)], True),
        # The loss is not forgotten before the controller has heard of it.
        ([("boot-z", True, KILLED), ("boot-a", False, KILLED)], False),
        ([("boot-z", True, KILLED), ("boot-a", False, CLEAN)], False),
        ([("boot-a", False, KILLED)], False),
        # The clean mark holds for one start only.
        ([("boot-z", True, CLEAN), ("boot-z", True, KILLED)], False),
        ([("", True, CLEAN)], True),
    ],
)
def test_what_survived_is_known(
    tmp_path: Path, runs: list[tuple[str, bool, bool]], intact: bool
) -> None:
    for boot, registers, clean in runs:
        directory = open_directory(tmp_path, boot=boot)
        if registers:
            directory.registration_accepted()
        directory.close(clean=clean)
    directory = open_directory(tmp_path, boot="boot-a")
    assert directory.data_intact == intact
    directory.close(clean=False)


def test_an_unknown_boot_id_is_never_the_same(tmp_path: Path) -> None:
    directory = open_directory(tmp_path, boot="")
    directory.registration_accepted()
    directory.close(clean=False)
    directory = open_directory(tmp_path, boot="")
    assert not directory.data_intact
    directory.close(clean=False)


@pytest.mark.parametrize("clean", [True, False])
def test_every_opening_is_named_before_anything_else_happens(tmp_path: Path, clean: bool) -> None:
    """And all are known, until it is certain that a controller has heard of the last."""
    seen: tuple[str, ...] = ()
    for _ in range(3):
        directory = open_directory(tmp_path)
        assert directory.generations[:-1] == seen
        assert directory.generations[-1] not in seen
        seen = directory.generations
        assert stored_generations(tmp_path) == seen
        directory.close(clean=clean)
    directory = open_directory(tmp_path)
    last = directory.generations[-1]
    directory.registration_accepted()
    directory.registration_accepted()
    assert directory.generations == (last,)
    directory.close(clean=clean)
    directory = open_directory(tmp_path)
    assert directory.generations[:-1] == (last,)
    directory.close(clean=clean)


def test_a_stop_is_named_as_well(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    (opened,) = directory.generations
    directory.stop_asked()
    directory.registration_accepted()
    known, stop = directory.generations
    assert known == opened, "a controller may have heard of no more than that"
    directory.close(clean=True)
    directory = open_directory(tmp_path)
    assert directory.generations[:-1] == (opened, stop)
    directory.close(clean=True)


def test_a_directory_that_the_cluster_knows_newer_is_not_trusted_by_the_next_run(
    tmp_path: Path,
) -> None:
    directory = open_directory(tmp_path)
    directory.registration_accepted()
    directory.close(clean=True)
    directory = open_directory(tmp_path)
    assert directory.data_intact
    directory.distrust("the newest")
    directory.close(clean=False)
    directory = open_directory(tmp_path)
    assert not directory.data_intact
    assert directory.generations[:-1] == ("the newest",)
    directory.close(clean=False)


def test_of_many_starts_in_vain_the_accepted_one_and_the_newest_are_known(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    directory.registration_accepted()
    (accepted,) = directory.generations
    for _ in range(GENERATIONS_KEPT + 1):
        directory.stop_asked()
    assert len(directory.generations) == GENERATIONS_KEPT
    assert directory.generations[0] == accepted
    before = directory.generations
    directory.close(clean=True)
    directory = open_directory(tmp_path)
    assert directory.generations[:-1] == (accepted, *before[2:])
    directory.close(clean=True)


def test_a_directory_that_names_more_than_a_registration_may_say_is_opened(tmp_path: Path) -> None:
    """Earlier releases kept 500."""
    open_directory(tmp_path).close(clean=True)
    file = tmp_path / "generations.json"
    names = [f"{number}" for number in range(GENERATIONS_MAX)]
    file.write_text(json.dumps(names))
    directory = open_directory(tmp_path)
    assert len(directory.generations) == GENERATIONS_KEPT
    assert directory.generations[:-1] == ("0", *names[2 - GENERATIONS_KEPT :])
    directory.close(clean=True)


def test_a_directory_of_a_release_that_names_no_generations_is_opened(tmp_path: Path) -> None:
    open_directory(tmp_path).close(clean=True)
    (tmp_path / "generations.json").unlink()
    directory = open_directory(tmp_path)
    assert len(directory.generations) == 1
    directory.close(clean=True)


def test_a_run_in_vain_of_such_a_release_takes_nothing_away(tmp_path: Path) -> None:
    """It rewrites meta.json with what it knows, and may be refused before it does anything."""
    directory = open_directory(tmp_path)
    directory.registration_accepted()
    (known,) = directory.generations
    directory.close(clean=True)
    change(tmp_path, clean_shutdown=False)
    assert "generations" not in stored(tmp_path)
    directory = open_directory(tmp_path)
    assert directory.generations[0] == known
    directory.close(clean=True)


def test_a_crash_before_the_distrust_is_complete_lets_nobody_be_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = open_directory(tmp_path)
    directory.registration_accepted()
    (known,) = directory.generations
    written = DurableFile.replace

    def crash(file: DurableFile, content: bytes) -> None:
        if file.path.name == "generations.json":
            raise OSError("the process ends here")
        written(file, content)

    with monkeypatch.context() as patch:
        patch.setattr(DurableFile, "replace", crash)
        with pytest.raises(OSError, match="ends here"):
            directory.distrust("the newest")
    directory.close(clean=False)
    directory = open_directory(tmp_path)
    assert not directory.data_intact
    assert directory.generations[0] == known, "refused again"
    directory.close(clean=False)


@pytest.mark.parametrize("text", ["", "{}", "[1]"])
def test_damaged_generations_are_refused_with_a_way_out(tmp_path: Path, text: str) -> None:
    open_directory(tmp_path).close(clean=True)
    (tmp_path / "generations.json").write_text(text)
    with pytest.raises(ClusterError, match=r"generations\.json is damaged .* remove it") as caught:
        open_directory(tmp_path)
    assert caught.value.code is ErrorCode.DATA_CORRUPTED


def test_changes_from_several_threads_follow_each_other(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    with ThreadPoolExecutor(4) as threads:
        for version in range(1, 26):
            threads.submit(directory.stop_asked)
            directory.remember_metadata(ControllerEpoch(1), version)
    assert (len(directory.generations), directory.metadata_version) == (26, 25)
    assert stored_generations(tmp_path) == directory.generations
    assert stored(tmp_path)["metadata_version"] == 25
    directory.close(clean=True)


def test_older_controllers_are_refused_also_after_a_restart(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    directory.remember_metadata(ControllerEpoch(3), 10)
    directory.remember_metadata(ControllerEpoch(3), 10)
    directory.remember_metadata(ControllerEpoch(4), 11)
    directory.close(clean=False)
    directory = open_directory(tmp_path)
    assert (directory.controller_epoch, directory.metadata_version) == (4, 11)
    for epoch, version in ((3, 12), (4, 10), (5, 10)):
        with pytest.raises(ClusterError, match="older") as caught:
            directory.remember_metadata(ControllerEpoch(epoch), version)
        assert caught.value.code is ErrorCode.STALE_CONTROLLER_EPOCH
    assert (directory.controller_epoch, directory.metadata_version) == (4, 11)
    directory.close(clean=True)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', "\x00\x00"])
def test_a_damaged_meta_file_is_refused(tmp_path: Path, text: str) -> None:
    open_directory(tmp_path).close(clean=True)
    (tmp_path / "meta.json").write_text(text)
    with pytest.raises(ClusterError, match=r"meta\.json is damaged") as caught:
        open_directory(tmp_path)
    assert caught.value.code is ErrorCode.DATA_CORRUPTED
    assert (tmp_path / "meta.json").read_text() == text


def test_a_log_without_its_meta_file_is_not_taken_for_a_new_directory(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    directory.log_path.mkdir()
    directory.close(clean=True)
    (tmp_path / "meta.json").unlink()
    with pytest.raises(ClusterError, match="so its owner is unknown"):
        open_directory(tmp_path)


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    open_directory(tmp_path).close(clean=True)
    change(tmp_path, format=2)
    with pytest.raises(MisuseError, match="format 2, but this version reads 1"):
        open_directory(tmp_path)


def test_an_interrupted_update_leaves_the_old_meta_file(tmp_path: Path) -> None:
    open_directory(tmp_path, cluster="flights").close(clean=True)
    (tmp_path / "meta.json.new").write_text('{"format": 1, "clu')
    directory = open_directory(tmp_path)
    assert directory.cluster_id == "flights"
    directory.close(clean=True)


@pytest.mark.parametrize("place", ["file", "below a file"])
def test_a_path_that_cannot_be_a_directory_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "taken").write_text("")
    path = tmp_path / "taken" if place == "file" else tmp_path / "taken" / "data"
    with pytest.raises(PenstockError, match="cannot be used") as caught:
        open_directory(path)
    assert caught.value.code is ErrorCode.INVALID_CONFIG


def test_closing_twice_is_harmless_and_space_is_told(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    assert 0 < directory.free_bytes() <= directory.total_bytes()
    directory.close(clean=True)
    directory.close(clean=False)
    assert stored(tmp_path)["clean_shutdown"] is True


def test_what_is_reserved_for_root_is_no_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `df` counts: a volume is full when nothing is left for this user."""
    with_reserve = SimpleNamespace(total=1_000, used=600, free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: with_reserve)
    directory = open_directory(tmp_path)
    assert (directory.free_bytes(), directory.total_bytes()) == (100, 700)
    directory.close(clean=True)
