"""Plants a defect at a line of a machine, for tests of how machines stop (core.defect).

`for run in every_line(folder, …)` tries the lines one after the other: the n-th run raises
`PlantedError` at the n-th line that is executed, until an event is handled to its end.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Self

import penstock

CORE = Path(penstock.__file__).parent / "core"


class PlantedError(KeyError):
    """No code path expects it."""


class Plant:
    """While entered: raises at the `at`-th line executed in files whose path begins so."""

    def __init__(self, at: int, prefix: str, outside: frozenset[str]) -> None:
        self.struck = False
        self._left = at
        self._prefix = prefix
        self._outside = outside
        self._before: Any = None

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, _arg: object) -> Any:
        code = frame.f_code
        if self.struck or not code.co_filename.startswith(self._prefix):
            return None
        if event == "call":
            return None if code.co_name in self._outside else self._trace
        if event == "line":
            self._left -= 1
            if self._left == 0:
                self.struck = True
                raise PlantedError(f"planted at {code.co_name}:{frame.f_lineno}")
        return self._trace


def every_line(part: str, *outside: str) -> Iterator[Plant]:
    """A plant per line below `core/part`; `outside`: functions that the promise is not about.

    Enter each and handle the event within; ends after the first that did not strike.
    """
    prefix, at = str(CORE / part), 0
    while True:
        at += 1
        plant = Plant(at, prefix, frozenset(outside))
        yield plant
        if not plant.struck:
            assert at > 1, "the event touches no line: nothing was tested"
            return
