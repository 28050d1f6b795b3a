"""The recording of the first minute shows the commands that are tested, and tells no secrets."""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.first_minute import COLUMNS, STEPS, Shell, Step
from tools.recording import CAST, PICTURE, PROMPT, cast, picture, record

ROOT = Path(__file__).resolve().parents[2]


class Quiet(Shell):
    """Every command takes its time and prints nothing."""

    TAKES_S = 7.0

    def play(self, step: Step) -> Iterator[tuple[float, str]]:
        yield self.TAKES_S, ""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(Path(sys.executable).parent, tmp_path)


def test_the_recording_shows_the_commands_that_make_wheel_proves() -> None:
    header, *events = [json.loads(line) for line in CAST.read_text().splitlines()]
    assert (header["version"], header["width"]) == (2, COLUMNS)
    times = [at for at, _, _ in events]
    assert times == sorted(times)
    assert times[-1] <= 60, "it is a minute"
    assert {kind for _, kind, _ in events} == {"o"}
    shown = "".join(text for _, _, text in events)
    typed = [part.partition("\r\n")[0] for part in shown.split(PROMPT)[1:]]
    assert re.fullmatch(r"pip install -q '\./penstock-\S+\.whl\[local\]'", typed[0])
    assert typed[1:] == [*(step.command for step in STEPS), ""]
    for step, said in zip(STEPS, shown.split(PROMPT)[2:], strict=False):
        assert step.said in said


@pytest.mark.parametrize("file", [CAST, PICTURE], ids=lambda file: file.name)
def test_the_recording_tells_nothing_of_its_machine(file: Path) -> None:
    text = file.read_text()
    hosts = set(re.findall(r"https?://([^/\s\"'<&:]+)", text))
    assert hosts <= {"127.0.0.1", "www.w3.org", "www.textualize.io"}, hosts
    for word in ("/tmp", "/home", "/root", "/work", "index-url", "@font-face", os.uname().nodename):
        assert word not in text, word


def test_the_readme_has_the_same_commands() -> None:
    minute = (ROOT / "README.md").read_text().partition("## One minute")[2].partition("## ")[0]
    for step in STEPS:
        if step.ends and "down" not in step.command:
            assert step.command in minute, step.command


def test_a_session_is_recorded_as_it_comes(shell: Shell) -> None:
    steps = (Step("echo one; pwd", "one"), Step("echo two; cat", "two", ends=False))
    *events, last = record(shell, steps)
    text = "".join(piece for _, piece in [*events, last])
    assert f"{PROMPT}echo one; pwd\r\none\r\n~\r\n{PROMPT}echo two; cat\r\ntwo" in text
    assert last[1] == PROMPT
    assert len(cast(events).splitlines()) == len(events) + 1
    assert "one" in picture(events)


def test_a_command_that_prints_nothing_takes_its_time(shell: Shell) -> None:
    ((took_s, text),) = shell.play(Step("true", ""))
    assert (took_s > 0, text) == (True, "")
    began, *_, ended = record(Quiet(shell.programs, shell.home), (Step("true", ""),))
    assert (began[1], ended[1]) == (PROMPT, PROMPT)
    assert ended[0] - began[0] > Quiet.TAKES_S


def test_a_step_that_fails_ends_it_with_what_it_said(shell: Shell) -> None:
    with pytest.raises(SystemExit, match="exit code 3, and no '' in:\nbad"):
        list(shell.play(Step("echo bad; exit 3", "")))
    with pytest.raises(SystemExit, match="exit code 0, and no 'good' in:\nbad"):
        list(shell.play(Step("echo bad", "good")))
