"""Entry point of a broker that looks at groups' lag all the time, else as `local.child`.

Brokers do so every 15 seconds, for a Prometheus that scrapes as seldom.
"""

import runpy
from pathlib import Path

from penstock_broker.groups import lag

LAUNCHER = ["-P", str(Path(__file__))]
"""Of a `ServerProcess`."""

if __name__ == "__main__":
    vars(lag)["INTERVAL_S"] = 0.2  # a constant, but for tests
    runpy.run_module("penstock_broker.local.child", run_name="__main__", alter_sys=True)
