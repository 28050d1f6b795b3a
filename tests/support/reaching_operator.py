"""Entry point of an operator that finds the brokers of every Cluster on this machine, else as
`penstock_operator`: there is no DNS for the names of pods.

    PENSTOCK_TEST_BOOTSTRAP=127.0.0.1:1234 python -P reaching_operator.py --broker-image …
"""

import os
import runpy
from pathlib import Path
from typing import Final

from penstock.client import AsyncAdmin, ClientConfig
from penstock_operator.brokers import Brokers
from penstock_operator.objects import DesiredCluster

LAUNCHER: Final = ("-P", str(Path(__file__)))
BOOTSTRAP: Final = "PENSTOCK_TEST_BOOTSTRAP"


async def _admin(self: Brokers, desired: DesiredCluster) -> AsyncAdmin:
    if self._admin is None:
        self._admin = AsyncAdmin(os.environ[BOOTSTRAP], ClientConfig(request_timeout_ms=20_000))
        if self._fence is not None:
            self._fence.guard(self._admin)
    return self._admin


if __name__ == "__main__":
    Brokers.admin = _admin  # type: ignore[method-assign]
    runpy.run_module("penstock_operator", run_name="__main__", alter_sys=True)
