"""HTTP on :8080: `/healthz`, `/readyz`, `/metrics`.

Live: the event loop answers, and every worker has finished a pass within ten minutes. So a stuck
worker ends with the process instead of going unnoticed. Ready: reconciling, or standing by. Neither
asks the API server (guarantees §4.6).
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from penstock_operator.metrics import Metrics

STUCK_S: Final = 600.0


@asynccontextmanager
async def serve_health(
    listen: tuple[str, int], metrics: Metrics, refresh: Callable[[], float]
) -> AsyncIterator[None]:
    """Serves until the block ends. `refresh`: updates gauges, returns the age of the oldest pass.

    Raises OSError when the port is taken.
    """

    async def healthz(_: web.Request) -> web.Response:
        age_s = refresh()
        if age_s > STUCK_S:
            text = f"a Cluster has not been reconciled for {age_s:.0f} s\n"
            return web.Response(text=text, status=503)
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def exposition(_: web.Request) -> web.Response:
        refresh()
        body = generate_latest(metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/metrics", exposition),
        ]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, *listen).start()
        yield
    finally:
        await runner.cleanup()
