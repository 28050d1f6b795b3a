"""Entry point of a controller that goes on without its lease for a minute, else as `local.child`.

As shipped it gives up after five seconds. Its brokers are tasks of the test's process: one that
stands still for a few of them would cost the controller its role.
"""

import runpy
from pathlib import Path
from typing import Final

from penstock_broker.controller import runtime

LAUNCHER: Final = ["-P", str(Path(__file__))]
"""Of a `ServerProcess`."""

if __name__ == "__main__":
    for name in ("_SUSPEND_S", "_REQUEST_TIMEOUT_S"):
        assert name in vars(runtime)
        vars(runtime)[name] = 60.0  # a constant, but for tests
    runpy.run_module("penstock_broker.local.child", run_name="__main__", alter_sys=True)
