"""Records a newcomer's first minute: `python -m tools.recording`.

    wheel ─▶ bare environment ─▶ pip install, STEPS, in a terminal ─▶ first-minute.cast, .svg

The cast is asciinema's format, version 2: a header, then an event a line. Nothing is cut: the times
are those of the machine it ran on, and the typing of a fast typist. The picture shows the same
session at its end.
"""

import io
import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from tools.first_minute import COLUMNS, ROWS, STEPS, Shell, Step

ROOT: Final = Path(__file__).resolve().parent.parent
CAST: Final = ROOT / "docs/images/first-minute.cast"
PICTURE: Final = ROOT / "docs/images/first-minute.svg"
PROMPT: Final = "\x1b[1;32m$\x1b[0m "
KEY_S: Final = 0.03
THINKS_S: Final = 0.4
Event = tuple[float, str]
"""Seconds since the begin, and what the terminal shows then."""


def main() -> None:
    """Writes both files."""
    with tempfile.TemporaryDirectory(prefix="penstock-recording-") as scratch:
        home = Path(scratch) / "home"
        home.mkdir()
        run = [sys.executable, "-m", "build", "--wheel", "--outdir", str(home), str(ROOT)]
        subprocess.run(run, check=True, capture_output=True)
        (wheel,) = home.glob("*.whl")
        venv.create(Path(scratch) / "venv", with_pip=True)
        shell = Shell(Path(scratch) / "venv/bin", home)
        install = Step(f"pip install -q './{wheel.name}[local]'", "")
        try:
            events = list(record(shell, (install, *STEPS)))
        finally:
            _stop(shell)
    CAST.write_text(cast(events))
    PICTURE.write_text(picture(events))
    print(f"{CAST.relative_to(ROOT)}: {events[-1][0]:.0f} s; {PICTURE.relative_to(ROOT)}")


def record(shell: Shell, steps: Iterable[Step]) -> Iterator[Event]:
    """All that the terminal shows, in order. Raises SystemExit if a step fails."""
    now_s = 0.0
    for step in steps:
        yield now_s, PROMPT
        now_s += THINKS_S
        for key in step.command:
            yield now_s, key
            now_s += KEY_S
        yield now_s, "\r\n"
        took_s = 0.0
        for took_s, text in shell.play(step):
            if text:
                yield now_s + took_s, text
        now_s += took_s
    yield now_s, PROMPT


def _stop(shell: Shell) -> None:
    """Whatever failed: nothing is left running."""
    subprocess.run(
        ["/bin/bash", "-c", "penstock local down --purge --yes --cluster local"],
        env=shell.environment, cwd=shell.home, capture_output=True, check=False,
    )  # fmt: skip


def cast(events: Iterable[Event]) -> str:
    """A recording for players of asciinema."""
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": "Penstock, the first minute"}
    lines = [json.dumps(header)]
    lines += [json.dumps([round(at_s, 3), "o", text], ensure_ascii=False) for at_s, text in events]
    return "\n".join(lines) + "\n"


def picture(events: Iterable[Event]) -> str:
    """The session as it looks at its end."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi("".join(text for _, text in events).replace("\r\n", "\n")))
    drawn = console.export_svg(title="penstock", unique_id="first-minute")
    # The font is another server's: whoever looks at the picture would ask it.
    begin, end = drawn.find("@font-face"), drawn.rfind("@font-face")
    end = drawn.find("}", end) + 1
    return drawn[:begin].rstrip() + drawn[end:] if begin >= 0 else drawn


if __name__ == "__main__":
    main()
