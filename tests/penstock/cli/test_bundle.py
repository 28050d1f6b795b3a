"""The file of a support bundle, whatever becomes of who makes it."""

from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

from penstock.cli.bundle import ERRORS, Entry, write_bundle


def interrupted() -> Iterator[Entry]:
    yield "cluster.json", "{}"
    raise KeyboardInterrupt


def test_a_bundle_has_what_was_collected_and_what_was_not(tmp_path: Path) -> None:
    file = tmp_path / "report.zip"
    rows = write_bundle(file, [("cluster.json", "{}")], ["no answer"])
    assert [row["file"] for row in rows] == ["cluster.json", ERRORS]
    assert ZipFile(file).read(ERRORS) == b"no answer\n"
    assert file.stat().st_mode & 0o777 == 0o600


def test_one_that_is_interrupted_leaves_no_file(tmp_path: Path) -> None:
    file = tmp_path / "report.zip"
    with pytest.raises(KeyboardInterrupt):
        write_bundle(file, interrupted(), [])
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_exists_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "report.zip"
    file.write_bytes(b"of somebody else")
    with pytest.raises(FileExistsError):
        write_bundle(file, [], [])
    assert file.read_bytes() == b"of somebody else"
