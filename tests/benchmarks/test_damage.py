"""The benchmark of damage and scrub: its parts run, and print their figures."""

import json
import sys
from pathlib import Path

import pytest
from support.benchmarks import running
from support.waiting import wait_exit

from benchmarks.damage import events, flip, mark


def test_damage_is_met_and_mended_and_a_scrub_reads(tmp_path: Path) -> None:
    """It ends with an error if the reader gets another record, or a scrub reads nothing."""
    parts = ["--only=mending", "--only=rest"]
    command = [sys.executable, "-m", "benchmarks.damage", "--quick", *parts]
    with running(command, tmp_path, {}) as process:
        assert wait_exit(process, 400) == 0, (tmp_path / "err").read_text()
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    mended = "found to mended, in a log of 32 MiB"
    assert [line["name"] for line in lines] == [
        "a damaged batch, found to served, worst",
        "a damaged batch, found to served, median",
        f"a damaged batch, {mended}, worst",
        f"a damaged batch, {mended}, median",
        "a damaged batch, found to in sync again, in a log of 32 MiB, median",
        "CPU that a scrub at 1 MiB/s costs a broker",
        "CPU that a scrub on request costs a broker",
    ]
    assert all(line["value"] > 0 for line in lines[:5]), "nothing is mended before it is found"
    assert [line["vs_value"] for line in lines if line["vs"]] == [1.0, 1.0, 3.0, 3.0, 3.0, 3.0]


def test_a_bit_flips_behind_the_mark_and_nowhere_else(tmp_path: Path) -> None:
    path, other = tmp_path / "000001.blob", tmp_path / "000002.blob"
    (tmp_path / "000003.blob").touch()
    path.write_bytes(b"before" + mark(7) + bytes(200) + mark(8) + bytes(200))
    other.write_bytes(mark(9) + bytes(200))
    flip(tmp_path, mark(7))
    found = path.read_bytes()
    assert found.find(b"\x10") == len(b"before") + len(mark(7)) + 100
    assert found.count(b"\x10") == 1
    assert b"\x10" not in other.read_bytes()
    with pytest.raises(SystemExit, match="in no blob file"):
        flip(tmp_path, mark(10))


def test_events_are_the_first_of_their_kind_from_there_on(tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    log.write_text('{"event": "replica damaged", "time": "2030-01-01T00:00:00.000Z"}\n')
    since = log.stat().st_size
    with log.open("a") as file:
        file.write("no JSON, as from a library\n")
        for second in (1, 2):
            line = {"event": "replica damaged", "time": f"2030-01-01T00:00:0{second}.500Z"}
            file.write(json.dumps(line) + "\n")
        file.write('{"event": "replica mended", "ti')  # being written
    found = events(log, since)
    assert {event: at.isoformat() for event, at in found.items()} == {
        "replica damaged": "2030-01-01T00:00:01.500000+00:00"
    }
