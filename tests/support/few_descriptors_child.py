"""Entry point of a broker that may have `DESCRIPTORS` file descriptors, else as `local.child`."""

import resource
import runpy
from pathlib import Path

LAUNCHER = ["-P", str(Path(__file__))]
"""Of a `ServerProcess`."""
DESCRIPTORS = 1_024

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    runpy.run_module("penstock_broker.local.child", run_name="__main__", alter_sys=True)
