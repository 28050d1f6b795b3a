"""A controller put together: its store, its runtime, its server; how it starts and stops.

    start   port bound ─▶ listening ─▶ the lease ─▶ takes over, or stands by
    stop    stop_requested, or a part fails ─▶ lease given up ─▶ no more calls ─▶ out

Command line, signals and the store itself are `main`'s. The simulator puts the same object
together, with seams of its own.
"""

import asyncio
from dataclasses import replace
from typing import Final

from penstock.core.authorization import Rulebook
from penstock.core.control import ControlConfig
from penstock_broker.controller.metadata_store.journal_holders import GrpcJournalHolders
from penstock_broker.controller.metadata_store.journaled import JournaledStore
from penstock_broker.controller.metrics import ControllerMetrics
from penstock_broker.controller.runtime import ControllerRuntime
from penstock_broker.controller.seams import ControllerSeams
from penstock_broker.controller.server import bind
from penstock_broker.controller.store_look import LOOK_S, StoreLook
from penstock_broker.observability import EventLog
from penstock_broker.process_metrics import ProcessMetrics
from penstock_broker.serving.tls_watch import watch_tls

_GRACE_S: Final = 0.5
_events = EventLog("controller")


class ControllerProcess:
    """One controller; `run` serves, once."""

    def __init__(
        self,
        config: ControlConfig,
        seams: ControllerSeams,
        listen: str,
        *,
        cluster_id: str = "",
        secure_listen: str = "",
        health_listen: str = "",
        journaled: bool = False,
        look_every_s: float = LOOK_S,
        runtime: type[ControllerRuntime] = ControllerRuntime,
        rulebook: Rulebook | None = None,
    ) -> None:
        """`journaled`: brokers keep changes while the store is unavailable. `cluster_id`: see the
        runtime. `look_every_s`: how often it looks for changes by others; 0: only before it
        stops. `runtime`: of a kind that the simulator can watch. `health_listen`: where probes
        ask too, empty: nowhere else. `secure_listen`: another address, with TLS. `rulebook`: with
        the roles that the options give.

        Raises RuntimeError when an address is not available.
        """
        self._transport, self._health_listen = seams.transport, health_listen
        plain = seams.store
        self._asking = asyncio.TaskGroup()
        self._holders = GrpcJournalHolders(seams.transport, self._asking)
        if journaled:
            store = JournaledStore(seams.store, self._holders, config.takeover_min_brokers)
            seams = replace(seams, store=store)
        self.runtime = runtime(config, seams, cluster_id)
        self._look_every_s = look_every_s
        self._look = StoreLook(plain, seams.clock, self.runtime.writing_machine, self.runtime.feed)
        self.server = bind(self.runtime, listen, seams, rulebook, secure_listen)
        self.listening = asyncio.Event()
        self.metrics = ControllerMetrics(self.runtime)
        self._process_metrics = ProcessMetrics(self.metrics.registry, "controller")
        self.stop_requested = asyncio.Event()

    async def run(self) -> None:
        """Serves until `stop_requested`; raises what ended it before, in a group.

        However it ends, the lease is given up, so that another controller takes over at once.
        """
        async with self._asking:
            try:
                await self._serve()
            finally:
                await self._holders.close()

    async def _serve(self) -> None:
        await self.server.start(self._transport, self._health_listen)
        self.listening.set()
        _events.info("controller listening", address=self.server.address)
        try:
            async with asyncio.TaskGroup() as tasks:
                parts = [
                    tasks.create_task(self.runtime.run(), name="runtime"),
                    tasks.create_task(self.server.watch_health(), name="health"),
                    tasks.create_task(self._process_metrics.run(), name="loop"),
                ]
                if self._look_every_s:
                    looking = self._look.run(self._look_every_s)
                    parts.append(tasks.create_task(looking, name="look"))
                if self._transport.tls is not None:
                    parts.append(tasks.create_task(watch_tls(self._transport.tls), name="tls"))
                await self.stop_requested.wait()
                await self._look.settle()
                for part in parts:
                    part.cancel()
        finally:
            # Brokers keep their roles; they find the next controller by themselves.
            await self.runtime.release()
            await self.server.stop(_GRACE_S)
