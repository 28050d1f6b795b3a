"""What a client process of `latency.py` is told to do, and the loops that all sides share.

A process gets one `Job`, connects, warms itself up, says "ready" and waits for "go"
(`Gate.wait`). Then it measures, says "done", hangs up, and answers with its `Sample`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Self

from benchmarks.latency_figures import Sample

PARTITIONS = 3
RECORD_BYTES = 100
LINGER_MS = 5
"""End to end, ours and Kafka; what is sent alone does not linger."""
TIMEOUT_S = 60.0
WARM_RECORDS = 50
"""That a pipelining client has under way while it warms up."""
STAMP_BYTES = 8
WARM, END = 0, (1 << 64) - 1
"""Stamps of records that are not measured: those before, and the last one of a partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One process's work.

    Attributes:
        side: Whose client: "ours", "kafka", "nats" or "bare".
        role: "append", "pipeline", "send" or "receive".
        bootstrap: Addresses, joined by commas.
        topic: Exists; NATS: the first part of its streams' names.
        clients: Of "append": the numbers of those in this process; client n writes to partition
            n modulo `PARTITIONS`, for NATS and the bare pattern to that stream or node.
        shared: Of "append": the clients of this process have one producer.
        seconds: How long to measure.
        settle_s: How long the process warms itself up before.
        records: Of "pipeline": how many.
        rate: Of "send": records per second.
        settings: Of "ours": further settings of the clients, such as `ca_file`.
    """

    side: str
    role: str
    bootstrap: str
    topic: str
    clients: tuple[int, ...] = ()
    shared: bool = False
    seconds: float = 0.0
    settle_s: float = 0.0
    records: int = 0
    rate: int = 0
    settings: dict[str, str] = field(default_factory=dict)


def say(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


class Gate:
    """Where a process stands until it is told to begin. It ends with its standard input, so with
    whoever started it, whatever it waits for."""

    def __init__(self) -> None:
        self._open = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def ready(self) -> None:
        say("ready")

    def wait(self) -> None:
        """Says "ready"; returns when told to go."""
        self.ready()
        self._open.wait()

    def done(self) -> None:
        """What is measured is over; the brokers' time ends here, before connections do."""
        say("done")

    def _read(self) -> None:
        for _ in sys.stdin:
            self._open.set()
        os._exit(0)


@dataclass(slots=True)
class Meter:
    """Clock and processor time of this process since `start`."""

    began: float = 0.0
    cpu_began: float = 0.0
    latencies_us: list[int] = field(default_factory=list)

    @classmethod
    def start(cls) -> Self:
        return cls(time.perf_counter(), time.process_time())

    def sample(self, events: int | None = None) -> Sample:
        """Until now; `events` None: as many as there are latencies."""
        return Sample(
            events=len(self.latencies_us) if events is None else events,
            took_s=time.perf_counter() - self.began,
            cpu_s=time.process_time() - self.cpu_began,
            latencies_us=self.latencies_us,
        )


async def closed_loops(
    appends: Sequence[Callable[[], Awaitable[object]]], job: Job, gate: Gate
) -> Sample:
    """One loop per append, each waiting for its answer before it goes on, all in this task's
    event loop: `settle_s` unmeasured, then, after the gate, `seconds`."""
    await _loops(appends, job.settle_s, [])
    await asyncio.to_thread(gate.wait)
    meter = Meter.start()
    await _loops(appends, job.seconds, meter.latencies_us)
    gate.done()
    return meter.sample()


async def _loops(
    appends: Sequence[Callable[[], Awaitable[object]]], seconds: float, latencies_us: list[int]
) -> None:
    end_ns = time.perf_counter_ns() + int(1e9 * seconds)

    async def run(append: Callable[[], Awaitable[object]]) -> None:
        now_ns = time.perf_counter_ns()
        while True:
            began_ns = now_ns
            await append()
            now_ns = time.perf_counter_ns()
            latencies_us.append((now_ns - began_ns) // 1_000)
            if now_ns >= end_ns:
                return

    async with asyncio.TaskGroup() as tasks:
        for append in appends:
            tasks.create_task(run(append))


def send_warm(send: Callable[[], object], flush: Callable[[], object], seconds: float) -> None:
    """Sends as fast as records are stored: what is handed over faster waits, and would be waited
    for long after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        for _ in range(WARM_RECORDS):
            send()
        flush()
        if time.monotonic() > end:
            return


# ---------------------------------------------------------------- end to end


def stamped(stamp: int) -> bytes:
    """A record of `RECORD_BYTES` that says when it was sent: nanoseconds since 1970, or `WARM`
    or `END`."""
    return stamp.to_bytes(STAMP_BYTES, "big").ljust(RECORD_BYTES, b".")


@dataclass(slots=True)
class Receipts:
    """What a consumer has received so far, of partitions that each hold warm records, measured
    ones, and one end."""

    latencies_us: list[int] = field(default_factory=list)
    begun: set[int] = field(default_factory=set)
    """Partitions a record of which has come: fetching them works."""
    ended: set[int] = field(default_factory=set)

    def take(self, partition: int, value: bytes, now_ns: int) -> None:
        stamp = int.from_bytes(value[:STAMP_BYTES], "big")
        self.begun.add(partition)
        if stamp == END:
            self.ended.add(partition)
        elif stamp != WARM:
            self.latencies_us.append((now_ns - stamp) // 1_000)


def send_paced(send: Callable[[bytes], object], rate: int, seconds: float, *, warm: bool) -> int:
    """Calls `send` `rate` times a second, one by one; what is late is sent at once. How often."""
    records = max(1, int(rate * seconds))
    began = time.perf_counter()
    for number in range(records):
        early_s = began + number / rate - time.perf_counter()
        if early_s > 0:
            time.sleep(early_s)
        send(stamped(WARM if warm else time.time_ns()))
    return records


def send_all(
    job: Job, gate: Gate, send: Callable[[bytes, int | None], object], flush: Callable[[], object]
) -> Sample:
    """A sender's whole work. `send(value, partition)`: None = any partition."""
    for partition in range(PARTITIONS):
        send(stamped(WARM), partition)
    send_paced(lambda value: send(value, None), job.rate, job.settle_s, warm=True)
    flush()
    gate.wait()
    meter = Meter.start()
    records = send_paced(lambda value: send(value, None), job.rate, job.seconds, warm=False)
    sample = meter.sample(records)
    for partition in range(PARTITIONS):
        send(stamped(END), partition)
    flush()
    gate.done()
    return sample


def receive_all(gate: Gate, poll: Callable[[Receipts], object]) -> Sample:
    """A receiver's whole work: ready when records of all partitions have come, done when all have
    ended. `poll` waits for records, at most about a second, and hands on what came.

    Raises SystemExit if records stay away for `TIMEOUT_S`.
    """
    receipts, meter = Receipts(), Meter.start()
    ready = False
    limit = time.monotonic() + TIMEOUT_S
    for _ in count():
        before = len(receipts.latencies_us)
        poll(receipts)
        if not ready and len(receipts.begun) == PARTITIONS:
            ready, meter = True, Meter.start()
            gate.ready()
        if len(receipts.ended) == PARTITIONS:
            break
        if len(receipts.latencies_us) > before:
            limit = time.monotonic() + TIMEOUT_S
        elif time.monotonic() > limit:
            raise SystemExit(f"no record for {TIMEOUT_S:.0f} s; ended: {sorted(receipts.ended)}")
    gate.done()
    meter.latencies_us = receipts.latencies_us
    return meter.sample()
