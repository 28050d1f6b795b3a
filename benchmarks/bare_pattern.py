"""What a replicated append costs in messages alone: the least that grpc.aio needs for the pattern.

    client ──record──▶ leader ──record──▶ two followers
       ▲────answer────────┘ ▲─────ack────────┘

Bidirectional streams with our channels' and servers' settings, bytes without protobuf, one message
per record, nothing merged, no log, no disk. As many processes as ours has brokers, each the leader
of the clients that connect to it and a follower of the others. A leader has one stream to each
follower, whose acks come in the order of its records.

`python -m benchmarks.bare_pattern NUMBER ADDRESS…` is one of the nodes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import grpc

from benchmarks.latency_figures import Sample
from benchmarks.latency_job import PARTITIONS, RECORD_BYTES, Gate, Job, closed_loops
from penstock.rpc.channel import SERVER_OPTIONS, open_aio_channel
from penstock_broker.local.ports import ReservedPort
from penstock_broker.local.processes import signals_deferred

APPEND, FOLLOW = "/bare.Pattern/Append", "/bare.Pattern/Follow"
ANSWER = b"8 bytes."


@dataclass(frozen=True, slots=True)
class Nodes:
    """Running nodes; `processes[i]` has the i-th address of `bootstrap`."""

    bootstrap: str
    processes: list[subprocess.Popen[bytes]]


@contextlib.contextmanager
def nodes(count: int) -> Iterator[Nodes]:
    """Runs so many nodes until the block ends. They may need a moment until they listen."""
    with contextlib.ExitStack() as held:
        addresses = [held.enter_context(ReservedPort()).address for _ in range(count)]
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for number in range(count):
                command = [sys.executable, "-m", "benchmarks.bare_pattern", str(number), *addresses]
                with signals_deferred():
                    processes.append(
                        subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0)
                    )
            yield Nodes(",".join(addresses), processes)
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.wait()
                if process.stdin is not None:
                    process.stdin.close()


class Follower:
    """A leader's stream to one follower. Made in the event loop; connects as soon as it can."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = open_aio_channel(address)
        self._call: Any = self._channel.stream_stream(FOLLOW)(wait_for_ready=True)
        self._writing = asyncio.Lock()
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def run(self) -> None:
        """Takes acks until cancelled."""
        async with self._channel:
            while await self._call.read() is not grpc.aio.EOF:
                self._waiting.popleft().set_result(None)
        raise SystemExit(f"{self._address} hung up")

    async def write(self, record: bytes) -> asyncio.Future[None]:
        """Sends a record; the future is done when it is acknowledged."""
        acknowledged = asyncio.get_running_loop().create_future()
        async with self._writing:
            self._waiting.append(acknowledged)
            await self._call.write(record)
        return acknowledged


class Node(grpc.GenericRpcHandler):
    """Both services of one process."""

    def __init__(self, followers: list[Follower]) -> None:
        self._followers = followers

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        serve = {APPEND: self._append, FOLLOW: _follow}.get(details.method)
        return None if serve is None else grpc.stream_stream_rpc_method_handler(serve)

    async def _append(self, _records: object, context: Any) -> None:
        """A client's stream. Both followers have a record under way before either is waited for."""
        while (record := await context.read()) is not grpc.aio.EOF:
            acks = [await follower.write(record) for follower in self._followers]
            for acknowledged in acks:
                await acknowledged
            await context.write(ANSWER)


async def _follow(_records: object, context: Any) -> None:
    while await context.read() is not grpc.aio.EOF:
        await context.write(ANSWER)


async def _serve(number: int, addresses: list[str]) -> None:
    followers = [Follower(each) for at, each in enumerate(addresses) if at != number]
    server = grpc.aio.server(options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers([Node(followers)])
    server.add_insecure_port(addresses[number])
    await server.start()
    async with asyncio.TaskGroup() as tasks:
        for follower in followers:
            tasks.create_task(follower.run())


# ---------------------------------------------------------------- the client


def append(job: Job, gate: Gate) -> Sample:
    """A connection with one stream per client."""
    return asyncio.run(_append(job, gate))


async def _append(job: Job, gate: Gate) -> Sample:
    record = b"." * RECORD_BYTES
    addresses = job.bootstrap.split(",")

    def of(call: Any) -> Callable[[], Awaitable[object]]:
        async def append() -> None:
            await call.write(record)
            if await call.read() is grpc.aio.EOF:
                raise SystemExit("the leader hung up")

        return append

    async with AsyncExitStack() as open_:
        appends = []
        for client in job.clients:
            address = addresses[client % PARTITIONS]
            channel = await open_.enter_async_context(open_aio_channel(address))
            appends.append(of(channel.stream_stream(APPEND)(wait_for_ready=True)))
        return await closed_loops(appends, job, gate)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("number", type=int)
    parser.add_argument("address", nargs="+")
    args = parser.parse_args()
    threading.Thread(target=_end_with_input, daemon=True).start()
    asyncio.run(_serve(args.number, args.address))


def _end_with_input() -> None:
    """Whoever started this is gone."""
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
