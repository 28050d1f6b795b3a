"""Attackers of `attacks.py`, in processes of their own: `python -m benchmarks.attackers ATTACK`.

    attacked(Attack(…)) ──▶ process ── "ready", and what it holds by then
           the block    ◀──────────── attacks until its standard input ends
           afterwards      process ── what it has counted

Each is known to the cluster, by a token: what it is refused, it is refused for what it does.
"""

import asyncio
import json
import resource
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from penstock.core.batch import Codec
from penstock.core.records import build_batch, encode_columns
from penstock.errors import ErrorCode
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.batches import batch_to_wire
from penstock.rpc.errors import error_from_rpc

PRODUCE: Final = "/penstock.proto.v1.BrokerService/Produce"
SUBSCRIBE: Final = "/penstock.proto.v1.BrokerService/Subscribe"
BOMB_BYTES: Final = 60 * 2**20
"""Of a batch once it is opened; it arrives as some kilobytes."""
FLOOD_BYTES: Final = 100_000
"""Of one request of a flood."""
FLOOD_OPEN_MAX: Final = 200
BEAT_S: Final = 0.01
STREAMS_AT_ONCE: Final = 500
STREAMS_PER_CONNECTION: Final = 1_000
PATIENCE_S: Final = 60.0
STEADY_S: Final = 0.5
CONNECT_S: Final = 2.0
AGAIN: Final = 500
"""Of connections that were cut: how many are made again at a time."""
SPARE: Final = 50
"""Descriptors that an attacker needs itself."""
Counts = Counter[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """What one process does.

    Attributes:
        kind: "bombs", "streams", "handshakes" or "flood".
        address: Of a broker's port.
        settings: `ca_file`, and the `token_file` of whoever attacks.
        topic: Of "bombs" and "flood"; its partition 0 is led at `address`.
        count: Of "bombs": parts of a request; else how many streams or connections are tried.
        bytes_per_s: Of "flood".
    """

    kind: str
    address: str
    settings: Mapping[str, str]
    topic: str = ""
    count: int = 0
    bytes_per_s: int = 0


@contextmanager
def attacked(attack: Attack) -> Iterator[Counts]:
    """Attacks while the block runs. What the attacker says of itself when all is in place, is there
    at once; the rest afterwards. Raises SystemExit if the attacker fails."""
    command = [sys.executable, "-m", __name__, json.dumps(asdict(attack))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            counts = Counter(_said(attack, process.stdout.readline()))
            yield counts
            process.stdin.close()
            counts.update(_said(attack, process.stdout.readline()))
        finally:
            process.kill()


def _said(attack: Attack, line: str) -> dict[str, int]:
    if not line:
        raise SystemExit(f"the attacker with {attack.kind} has failed")
    return dict(json.loads(line))


class _Attacker:
    """What they have in common: a connection with credentials, and when to end."""

    def __init__(self, attack: Attack) -> None:
        self.attack = attack
        self._ca = Path(attack.settings["ca_file"]).read_bytes()
        token = Path(attack.settings["token_file"]).read_text()
        self.shown = (("authorization", f"Bearer {token}"),)
        self._end = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        sys.stdin.read()
        self._loop.call_soon_threadsafe(self._end.set)

    @property
    def goes_on(self) -> bool:
        return not self._end.is_set()

    async def ended(self) -> None:
        await self._end.wait()

    def channel(self) -> grpc.aio.Channel:
        """One more connection."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        return grpc.aio.secure_channel(
            self.attack.address, grpc.ssl_channel_credentials(self._ca), options
        )

    def ready(self, **held: int) -> None:
        print(json.dumps(held), flush=True)


async def bombs(attacker: _Attacker) -> Counts:
    """One request of many bombs after the other. Counts parts that were `taken` and `refused`."""
    attack, counts = attacker.attack, Counts(requests=0)
    columns = encode_columns([bytes(BOMB_BYTES)], keys=[b"k"], timestamps_ms=0)
    batch = batch_to_wire(build_batch(columns, codec=Codec.ZSTD))
    parts = [pb.ProducePartition(topic=attack.topic, batch=batch)] * attack.count
    request = pb.ProduceRequest(partitions=parts, acks=pb.ACKS_LEADER, timeout_ms=60_000)
    payload = request.SerializeToString()
    async with attacker.channel() as channel:
        produce: Any = channel.unary_unary(
            PRODUCE, response_deserializer=pb.ProduceResponse.FromString
        )
        while attacker.goes_on:
            answer = await produce(payload, metadata=attacker.shown, timeout=2 * PATIENCE_S)
            codes = [ErrorCode(result.error.code) for result in answer.results]
            if other := set(codes) - {ErrorCode.UNSPECIFIED, ErrorCode.OVERLOADED}:
                raise SystemExit(f"bombs are refused with {other}, not because they are too many")
            refused = codes.count(ErrorCode.OVERLOADED)
            counts.update(requests=1, refused=refused, taken=attack.count - refused)
            if counts["requests"] == 1:
                attacker.ready()
    return counts


async def streams(attacker: _Attacker) -> Counts:
    """Streams that are opened and not used. Counts those that are `held`, and `refused`."""
    async with AsyncExitStack() as connections:
        calls: list[Any] = []
        while len(calls) < attacker.attack.count:
            if len(calls) % STREAMS_PER_CONNECTION == 0:
                channel = await connections.enter_async_context(attacker.channel())
                subscribe: Any = channel.stream_stream(SUBSCRIBE)
            more = min(STREAMS_AT_ONCE, attacker.attack.count - len(calls))
            opened = [subscribe(metadata=attacker.shown) for _ in range(more)]
            async with asyncio.TaskGroup() as tasks:
                for call in opened:
                    tasks.create_task(_answered(call))
            calls += opened
        held, before = sum(not call.done() for call in calls), -1
        while held != before:
            await asyncio.sleep(STEADY_S)
            held, before = sum(not call.done() for call in calls), held
        attacker.ready(held=held, refused=len(calls) - held)
        await attacker.ended()
        for call in calls:
            call.cancel()
    return Counts(left=held)


async def _answered(call: Any) -> None:
    """The stream is open, or refused."""
    with suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
        await call.initial_metadata()


async def handshakes(attacker: _Attacker) -> Counts:
    """TCP connections that begin no handshake; those that are cut are made again, a part of them
    at a time. Counts how many are `tried` at one time, and those that were `made`."""
    host, _, port = attacker.attack.address.rpartition(":")
    most = min(attacker.attack.count, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE)
    counts = Counts(made=0)
    connections: list[socket.socket] = []

    def connect(count: int) -> None:
        with suppress(OSError):  # nobody accepts there at the moment
            for _ in range(count):
                connections.append(socket.create_connection((host, int(port)), CONNECT_S))
                connections[-1].setblocking(False)
                counts["made"] += 1

    connect(most)
    attacker.ready(tried=most)
    while attacker.goes_on:
        await asyncio.sleep(STEADY_S)
        cut = [one for one in connections if not _is_open(one)]
        for one in cut[:AGAIN]:
            one.close()
            connections.remove(one)
        connect(min(AGAIN, most - len(connections)))
    for one in connections:
        one.close()
    return counts


def _is_open(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True
    except OSError:
        return False


async def flood(attacker: _Attacker) -> Counts:
    """Requests at a rate, whatever the answers to those before say. Counts `offered` bytes, and
    requests that were `taken`, `throttled`, and `failed` in another way."""
    attack, counts = attacker.attack, Counts()
    columns = encode_columns([b"." * 1_000] * (FLOOD_BYTES // 1_000), timestamps_ms=0)
    part = pb.ProducePartition(topic=attack.topic, batch=batch_to_wire(build_batch(columns)))
    request = pb.ProduceRequest(partitions=[part], acks=pb.ACKS_ALL, timeout_ms=30_000)
    payload = request.SerializeToString()
    under_way = 0

    async def call() -> None:
        nonlocal under_way
        counts["offered"] += len(payload)
        under_way += 1
        try:
            answer = await produce(payload, metadata=attacker.shown, timeout=PATIENCE_S)
            code = ErrorCode(answer.results[0].error.code)
        except grpc.aio.AioRpcError as error:
            code = error_from_rpc(error).code
        finally:
            under_way -= 1
        known = {ErrorCode.UNSPECIFIED: "taken", ErrorCode.THROTTLED: "throttled"}
        counts[known.get(code, "failed")] += 1

    async with attacker.channel() as channel, asyncio.TaskGroup() as tasks:
        produce: Any = channel.unary_unary(
            PRODUCE, response_deserializer=pb.ProduceResponse.FromString
        )
        await call()
        attacker.ready()
        loop = asyncio.get_running_loop()
        began, cpu_began, sent = loop.time(), time.process_time(), 0
        while attacker.goes_on:
            due = int((loop.time() - began) * attack.bytes_per_s / FLOOD_BYTES) - sent
            for _ in range(min(due, FLOOD_OPEN_MAX - under_way)):
                tasks.create_task(call())
            sent += due
            await asyncio.sleep(BEAT_S)
        counts["milliseconds"] = int(1e3 * (loop.time() - began))
        counts["cpu_milliseconds"] = int(1e3 * (time.process_time() - cpu_began))
    return counts


KINDS: Final[Mapping[str, Callable[[_Attacker], Awaitable[Counts]]]] = {
    "bombs": bombs,
    "streams": streams,
    "handshakes": handshakes,
    "flood": flood,
}


async def _run(attack: Attack) -> None:
    print(json.dumps(await KINDS[attack.kind](_Attacker(attack))), flush=True)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_run(Attack(**json.loads(sys.argv[1]))))
