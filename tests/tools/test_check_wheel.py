"""`make wheel` leaves the wheel that has passed where the README sends people to."""

from pathlib import Path

import pytest

from tools.check_wheel import keep


def test_the_wheel_stays_and_the_command_that_installs_it_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    built = tmp_path / "penstock-1.0-py3-none-any.whl"
    built.write_bytes(b"new")
    folder = tmp_path / "dist"
    folder.mkdir()
    (folder / built.name).write_bytes(b"of the build before")
    keep(built, folder)
    kept = folder / built.name
    assert kept.read_bytes() == b"new"
    assert capsys.readouterr().out == f"to install it: pip install '{kept}[local]'\n"
