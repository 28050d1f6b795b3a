"""Entry point of a broker that registers as one of an older release, else as `local.child`."""

import runpy
from pathlib import Path

from penstock_broker.metadata import session

LAUNCHER = ["-P", str(Path(__file__))]
"""Of a `ServerProcess`."""

if __name__ == "__main__":
    vars(session)["BROKER_FEATURES"] = ()  # a constant of this release
    runpy.run_module("penstock_broker.local.child", run_name="__main__", alter_sys=True)
