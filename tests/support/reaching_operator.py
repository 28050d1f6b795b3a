"""Entry point of an operator that finds the brokers of every Cluster on this machine, else as
`penstock_operator`: there is no DNS for the names of pods.

    PENSTOCK_TEST_BOOTSTRAP=127.0.0.1:1234 python -P reaching_operator.py --broker-image …
"""

import os
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Final

from penstock.client import AsyncAdmin
from penstock_operator.brokers import Brokers, _config
from penstock_operator.objects import DesiredCluster

LAUNCHER: Final = ("-P", str(Path(__file__)))
BOOTSTRAP: Final = "PENSTOCK_TEST_BOOTSTRAP"


async def _admin(self: Brokers, desired: DesiredCluster) -> AsyncAdmin:
    shown = None if self._credentials is None else await self._credentials.files(desired)
    if self._admin is None or self._connected[1] != shown:
        await self.close()
        config = replace(_config(shown), request_timeout_ms=20_000)
        self._admin, self._connected = AsyncAdmin(os.environ[BOOTSTRAP], config), ("", shown)
        if self._fence is not None:
            self._fence.guard(self._admin)
    return self._admin


if __name__ == "__main__":
    Brokers.admin = _admin  # type: ignore[method-assign]
    runpy.run_module("penstock_operator", run_name="__main__", alter_sys=True)
