"""A real NATS JetStream to measure beside, its server built from its Go module (Go needed).

`with nats(servers) as peer:` starts a cluster on free loopback ports with NATS's own defaults,
streams in files, and ends it by its process ids. Acknowledged is what a majority of a stream's
replicas has in the page cache; to disk it goes every two minutes (`sync_interval`).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common import progress
from penstock_broker.local.ports import ReservedPort
from penstock_broker.local.processes import signals_deferred

if TYPE_CHECKING:
    from nats.js import JetStreamContext

VERSION = "2.15.2"
MODULE = f"github.com/nats-io/nats-server/v2@v{VERSION}"
START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class NatsPeer:
    """Running servers; `processes[i]` is named `n<i>` and has the i-th address of `bootstrap`."""

    bootstrap: str
    processes: list[subprocess.Popen[bytes]]


def available() -> str | None:
    """None if NATS can be run here, else what is missing."""
    if importlib.util.find_spec("nats") is None:
        return "nats-py not installed"
    if shutil.which("go") is None and not _binary().exists():
        return "go not found"
    return None


@contextlib.contextmanager
def nats(servers: int) -> Iterator[NatsPeer]:
    """Runs so many servers, each with JetStream, until the block ends."""
    binary = _built()
    with (
        tempfile.TemporaryDirectory(prefix="penstock-nats-") as scratch,
        contextlib.ExitStack() as held,
    ):
        reserved = [held.enter_context(ReservedPort()) for _ in range(2 * servers)]
        addresses = [each.address for each in reserved]
        routes = ", ".join(f'"nats://{address}"' for address in addresses[servers:])
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for number in range(servers):
                config = Path(scratch) / f"{number}.conf"
                config.write_text(
                    f"server_name: n{number}\nlisten: {addresses[number]}\n"
                    f'jetstream {{ store_dir: "{scratch}/data-{number}" }}\n'
                    f"cluster {{ name: bench, listen: {addresses[servers + number]}, "
                    f"routes: [{routes}] }}\n"
                )
                with signals_deferred(), config.with_suffix(".log").open("wb") as log:
                    command = [str(binary), "-c", str(config)]
                    processes.append(
                        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                    )
            bootstrap = ",".join(f"nats://{address}" for address in addresses[:servers])
            yield NatsPeer(bootstrap, processes)
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.wait(timeout=30)


def create_streams(bootstrap: str, name: str, streams: int) -> None:
    """Streams and subjects `name-0`, `name-1`, … of three replicas in files.

    Tries until the servers have found each other. Raises SystemExit after `START_SECONDS`.
    """
    asyncio.run(_create_streams(bootstrap, name, streams))


async def _create_streams(bootstrap: str, name: str, streams: int) -> None:
    import nats  # noqa: PLC0415 - others do without NATS
    from nats.errors import Error  # noqa: PLC0415
    from nats.js.api import StorageType  # noqa: PLC0415

    servers = bootstrap.split(",")
    limit = time.monotonic() + START_SECONDS
    while True:
        try:
            connection = await nats.connect(servers[0], allow_reconnect=False)
        except (OSError, Error):
            await _again(limit)
            continue
        try:
            context = connection.jetstream()
            for number in range(streams):
                stream = f"{name}-{number}"
                await context.add_stream(
                    name=stream, subjects=[stream], num_replicas=3, storage=StorageType.FILE
                )
                await server_of(context, stream, servers)
        except Error:
            await _again(limit)
        else:
            return
        finally:
            await connection.close()


async def _again(limit: float) -> None:
    if time.monotonic() > limit:
        raise SystemExit(f"NATS made no streams within {START_SECONDS:.0f} s")
    await asyncio.sleep(0.3)


async def server_of(context: JetStreamContext, stream: str, servers: Sequence[str]) -> str:
    """The address of the server that leads a stream; waits until one does."""
    limit = time.monotonic() + START_SECONDS
    while True:
        cluster = (await context.stream_info(stream)).cluster
        if cluster is not None and cluster.leader:
            return servers[int(cluster.leader.removeprefix("n"))]
        await _again(limit)


def _binary() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "penstock-peers"
    return cache / f"nats-{VERSION}" / "nats-server"


def _built() -> Path:
    binary = _binary()
    if not binary.exists():
        progress("building NATS with Go (once)")
        environment = {**os.environ, "GOBIN": str(binary.parent), "GOFLAGS": "-mod=mod"}
        subprocess.run(["go", "install", MODULE], check=True, env=environment)
    return binary
