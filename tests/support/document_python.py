"""The Python of a page: one program per line of standard input, all in one namespace.

    python document_python.py FD
    {"text": "print(1)", "place": "README.md:7"} ─▶ runs it ─▶ FD: done, interrupted or failed

A program that fails has printed its traceback, with the lines of the page.
"""

import json
import linecache
import os
import signal
import sys
import traceback
from typing import Any


def main() -> None:
    answers = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    names: dict[str, Any] = {"__name__": "__main__"}
    for line in iter(sys.stdin.buffer.readline, b""):
        program = json.loads(line)
        answers.write(run(program["text"], program["place"], names) + "\n")


def run(text: str, place: str, names: dict[str, Any]) -> str:
    """How it ended. A signal that comes when it has ended already does nothing."""
    linecache.cache[place] = (len(text), None, text.splitlines(keepends=True), place)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        exec(compile(text, place, "exec"), names)
    except KeyboardInterrupt:
        return "interrupted"
    except BaseException:  # noqa: BLE001 - whatever it is, the page shows a program that fails
        traceback.print_exc()
        return "failed"
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return "done"


if __name__ == "__main__":
    main()
