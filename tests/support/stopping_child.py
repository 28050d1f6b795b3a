"""`penstock …` that stops itself, as by SIGSTOP, in the middle of what it does, however fast it is.

    python -P stopping_child.py perf consume flights          when it has counted what a poll found
    python -P stopping_child.py import --from kafka://… …     when its first batch is stored and the
                                                              second one is on its way

Whoever started it looks around, sends what signals it likes, and then SIGCONT.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

from penstock.cli.main import main
from penstock.cli.perf import Meter
from penstock.migration.own import Penstock

WORDS: Final = ("-P", str(Path(__file__)))
_add, _append = Meter.add, Penstock.append
_appended = 0


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _adding(self: Meter, records: int, size_bytes: int) -> None:
    _add(self, records, size_bytes)
    if records:
        Meter.add = _add  # type: ignore[method-assign]
        _stop()


def _appending(self: Penstock, where: Any, rows: Any) -> Any:
    global _appended  # noqa: PLW0603 - of this process
    under_way = _append(self, where, rows)
    _appended += 1
    if _appended == 1:
        under_way.base_offset()  # waits until it is stored
    elif _appended == 2:
        _stop()
    return under_way


if __name__ == "__main__":
    Meter.add = _adding  # type: ignore[method-assign]
    Penstock.append = _appending  # type: ignore[method-assign]
    main(sys.argv[1:])
