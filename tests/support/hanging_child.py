"""Entry point of a controller that hangs when a test says so, else as `local.child`.

    PENSTOCK_TEST_FAULTS=folder python -P hanging_child.py controller …

While `folder/hang` exists, its event loop stands still, and makes `folder/hangs`. Its other threads
go on: it is scraped.
"""

import os
import runpy
import time
from pathlib import Path
from typing import Final

from penstock_broker.controller.runtime import ControllerRuntime

LAUNCHER: Final = ["-P", str(Path(__file__))]
FAULTS: Final = "PENSTOCK_TEST_FAULTS"
_tell = ControllerRuntime._tell_store_state


def _hanging(self: ControllerRuntime) -> None:
    """In place of what each tick of the controller begins with."""
    folder = Path(os.environ[FAULTS])
    while (folder / "hang").exists():
        (folder / "hangs").touch()
        time.sleep(0.05)
    _tell(self)


if __name__ == "__main__":
    ControllerRuntime._tell_store_state = _hanging  # type: ignore[method-assign]
    runpy.run_module("penstock_broker.local.child", run_name="__main__", alter_sys=True)
