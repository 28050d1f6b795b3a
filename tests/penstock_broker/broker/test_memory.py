"""I23: whatever is thrown at a broker, its memory stays within its settings.

A real process with small limits gets many times of what they allow: producers that do not wait
for answers, fetches of everything at once, subscribers that never read. What counts is the
largest resident set the kernel has seen.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.cluster import Cluster
from support.waiting import wait_until
from support.wire import Wire, call_error, make_batch

from penstock.errors import ErrorCode
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.batches import batch_to_wire

MIB = 1024 * 1024
PRODUCE_BYTES = FETCH_BYTES = 16 * MIB
CACHE_BYTES = 8 * MIB
STORE_BYTES = (3 * 32 + 2 * 8 + 16) * MIB
"""RocksDB's write buffers and block cache (`store.options`)."""
BASE_BYTES = 80 * MIB
"""The interpreter and its libraries: an idle broker has 60 MB."""
STREAMS, FETCHERS, SUBSCRIBERS = 8, 24, 2
WIRE_BYTES = STREAMS * 2 * MIB + (FETCHERS + SUBSCRIBERS) * MIB
"""Per connection what gRPC itself holds: the message that comes in, the windows that go out."""
_PARTS_BYTES = BASE_BYTES + STORE_BYTES + 3 * PRODUCE_BYTES + 3 * FETCH_BYTES + CACHE_BYTES
"""Three times: a batch that comes is message, batch and in the store's write; an answer that goes
is batches, message and gRPC's copy."""
BOUND_BYTES = (_PARTS_BYTES + WIRE_BYTES) * 7 // 5
"""Two fifths for what the allocator cannot give back: a twentieth is usual, and where clients of a
crowded machine read late, a third."""
OFFERED_BYTES = 768 * MIB
HANGS_S = 1_200
"""No call takes that long, whatever else the machine does: 60 s were too few at load 60."""
ANSWER_BYTES = 32 * MIB


def peak_bytes(pid: int) -> int:
    """The largest resident set so far."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@pytest.fixture
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    """One broker with small limits, and a topic of a partition per producer."""
    limits = {
        "produce.inflight.bytes": PRODUCE_BYTES,
        "fetch.inflight.bytes": FETCH_BYTES,
        "cache.bytes": CACHE_BYTES,
    }
    config = {key: str(value) for key, value in limits.items()}
    cluster = make_cluster(brokers=1, broker_config=config, forked=False)
    cluster.create_topic("t", partitions=STREAMS)
    return cluster


def offer(cluster: Cluster, partition: int, outcomes: Counter[str]) -> None:
    """Sends its share down one stream without waiting, and counts how each request ended."""
    message = batch_to_wire(make_batch([bytes(MIB - 4096)]))
    part = pb.ProducePartition(topic="t", partition=partition, batch=message)
    count = OFFERED_BYTES // STREAMS // MIB

    def requests() -> Iterator[pb.ProduceRequest]:
        for number in range(count):
            yield pb.ProduceRequest(
                correlation_id=number + 1, timeout_ms=HANGS_S * 1_000, partitions=[part]
            )

    with Wire(cluster.brokers[0].address) as wire:
        for answer in wire.data.ProduceStream(requests(), timeout=HANGS_S):
            (result,) = answer.results
            outcomes[ErrorCode(result.error.code).name if result.HasField("error") else "done"] += 1


def fetch_everything(cluster: Cluster, done: threading.Event, outcomes: Counter[str]) -> None:
    """Asks for as much as fits into one answer, again and again."""
    parts = [
        pb.FetchPartition(topic="t", partition=index, offset=0, max_bytes=ANSWER_BYTES)
        for index in range(STREAMS)
    ]
    request = pb.FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=ANSWER_BYTES, partitions=parts)
    with Wire(cluster.brokers[0].address) as wire:
        while not done.is_set():
            try:
                answer = wire.data.Fetch(request, timeout=HANGS_S)
                outcomes["answered"] += answer.ByteSize()
            except grpc.RpcError as error:
                outcomes[call_error(error).code.name] += 1
                done.wait(0.05)


def subscribe_and_sleep(wire: Wire, done: threading.Event) -> Any:
    """A subscriber with all the credit there is that never takes a message."""

    def requests() -> Iterator[pb.SubscribeRequest]:
        parts = [pb.FetchPartition(topic="t", partition=p, offset=0) for p in range(STREAMS)]
        yield pb.SubscribeRequest(subscribe=parts, credit_bytes=1 << 30, generation=1)
        done.wait(HANGS_S)

    return wire.data.Subscribe(requests())


def test_peak_memory_stays_below_what_the_settings_add_up_to(cluster: Cluster) -> None:
    pid = cluster.brokers[0].pid
    outcomes: Counter[str] = Counter()
    fetches: Counter[str] = Counter()
    done = threading.Event()
    producers = [
        threading.Thread(target=offer, args=(cluster, index, outcomes)) for index in range(STREAMS)
    ]
    readers = [
        threading.Thread(target=fetch_everything, args=(cluster, done, fetches))
        for _ in range(FETCHERS)
    ]
    wires = [Wire(cluster.brokers[0].address) for _ in range(SUBSCRIBERS)]
    try:
        streams = [subscribe_and_sleep(wire, done) for wire in wires]
        for thread in (*producers, *readers):
            thread.start()
        for thread in producers:
            thread.join()
        wait_until(
            lambda: fetches["answered"] > 8 * FETCH_BYTES, what="answers were sent", timeout_s=60
        )
        for stream in streams:
            stream.cancel()
    finally:
        done.set()
        for thread in (*producers, *readers):
            thread.join()
        for wire in wires:
            wire.channel.close()
    peak = peak_bytes(pid)
    print(peak / MIB, BOUND_BYTES / MIB, outcomes, fetches)
    assert outcomes["done"] * MIB > 4 * PRODUCE_BYTES, outcomes
    assert outcomes.keys() <= {"done", "OVERLOADED"}, outcomes
    assert fetches.keys() <= {"answered", "OVERLOADED"}, fetches
    assert peak < BOUND_BYTES, (
        f"{peak / MIB:.0f} MiB of {BOUND_BYTES / MIB:.0f}: {outcomes} {fetches}"
    )
