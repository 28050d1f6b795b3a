"""Brokers' ports for message streams, played by a test, and what else may listen there."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from penstock.rpc.streams.contract import Handle
from penstock.rpc.streams.tcp import TcpStreamServer

HOST = "127.0.0.1"


@asynccontextmanager
async def stream_server(handle: Handle, address: str = f"{HOST}:0") -> AsyncIterator[str]:
    """The address of a server of message streams, which runs during the block."""
    server = TcpStreamServer(handle, 100)
    port = await server.listen(address)
    running = asyncio.get_running_loop().create_task(server.run())
    try:
        yield f"{HOST}:{port}"
    finally:
        running.cancel()
        await asyncio.wait([running])


class OtherServer:
    """Says `greeting` to everyone, and nothing more. `open`: connections that are not closed."""

    def __init__(self, greeting: bytes) -> None:
        self._greeting = greeting
        self.accepted = self.open = 0
        self.address = ""

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.open += 1
        writer.write(self._greeting)
        with suppress(OSError):
            await reader.read()
        self.open -= 1
        writer.close()


@asynccontextmanager
async def other_server(greeting: bytes = b"") -> AsyncIterator[OtherServer]:
    """A server of something else, or one that is silent, runs during the block."""
    other = OtherServer(greeting)
    server = await asyncio.start_server(other.talk, HOST, 0)
    other.address = f"{HOST}:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield other


def cut_connections(port: int) -> int:
    """Shuts this process's TCP connections from or to `port` down below their users, who find them
    closed; how many there were."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if entry.is_socket():
                found += _cut(os.dup(int(entry.name)), port)
    return found


def _cut(descriptor: int, port: int) -> bool:
    with socket.socket(fileno=descriptor) as seen:
        if seen.family == socket.AF_UNIX:
            return False
        if port not in {seen.getsockname()[1], seen.getpeername()[1]}:
            return False
        seen.shutdown(socket.SHUT_RDWR)
        return True
