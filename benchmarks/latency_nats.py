"""NATS's clients of `latency.py`: nats-py, each append a JetStream publish that is acknowledged."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import nats
from nats.js import JetStreamContext

from benchmarks.latency_figures import Sample
from benchmarks.latency_job import PARTITIONS, RECORD_BYTES, TIMEOUT_S, Gate, Job, closed_loops
from benchmarks.nats_peer import server_of


def append(job: Job, gate: Gate) -> Sample:
    """A connection per client, to the server that leads the client's stream: no further hop."""
    return asyncio.run(_append(job, gate))


async def _append(job: Job, gate: Gate) -> Sample:
    value = b"." * RECORD_BYTES
    servers = job.bootstrap.split(",")
    async with AsyncExitStack() as open_:

        async def connect(server: str) -> JetStreamContext:
            connection = await nats.connect(server, allow_reconnect=False)
            open_.push_async_callback(connection.close)
            return connection.jetstream(timeout=TIMEOUT_S)

        any_server = await connect(servers[0])
        leaders = {
            number: await server_of(any_server, f"{job.topic}-{number}", servers)
            for number in range(PARTITIONS)
        }

        def of(stream: JetStreamContext, subject: str) -> Callable[[], Awaitable[object]]:
            return lambda: stream.publish(subject, value)

        appends = []
        for client in job.clients:
            number = client % PARTITIONS
            stream = await connect(leaders[number])
            appends.append(of(stream, f"{job.topic}-{number}"))
        return await closed_loops(appends, job, gate)
