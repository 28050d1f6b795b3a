"""Attack 18: requests that would take many times their size once parsed are refused before that."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.channels import patient_channel
from support.cluster import Cluster

from penstock.client import AsyncAdmin
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1 import streams_pb2
from penstock.rpc.channel import MAX_MESSAGE_BYTES
from penstock.rpc.errors import error_from_rpc
from penstock.rpc.streams.tcp import open_tcp_stream

EMPTY_PARTITIONS = b"\x32\x00" * (MAX_MESSAGE_BYTES // 2 - 512)
"""Some 33 million of them: `partitions` is field 6 of a ProduceRequest, and of a FetchRequest."""
MIB = 2**20


def send(address: str, method: str, body: bytes) -> PenstockError:
    """What a unary call with this body is refused with."""
    with patient_channel(address) as channel:
        call: Any = channel.unary_unary(f"/penstock.proto.v1.{method}")
        with pytest.raises(grpc.RpcError) as caught:
            call(body, timeout=60)
    return error_from_rpc(caught.value)


def memory_bytes(pid: int) -> int:
    """The most that a process ever had in memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no such line")


def test_a_message_of_empty_partitions_is_not_parsed(cluster: Cluster) -> None:
    """The message itself takes its size, and gRPC takes it twice while it hands it over."""
    broker = cluster.brokers[0]
    before = memory_bytes(broker.pid)
    error = send(broker.address, "BrokerService/Produce", EMPTY_PARTITIONS)
    assert error.code is ErrorCode.INVALID_REQUEST
    assert "has more than 21000 fields, which is the limit; split it" in error.message
    assert memory_bytes(broker.pid) - before < 2 * MAX_MESSAGE_BYTES + 100 * MIB


def test_a_stream_is_checked_like_a_call(cluster: Cluster) -> None:
    with patient_channel(cluster.brokers[0].address) as channel:
        stream: Any = channel.stream_stream("/penstock.proto.v1.BrokerService/ProduceStream")
        with pytest.raises(grpc.RpcError) as caught:
            next(stream(iter([EMPTY_PARTITIONS[: 2 * MIB]]), timeout=60))
    assert "has more than 21000 fields" in error_from_rpc(caught.value).message


@pytest.mark.parametrize(
    ("method", "before"),
    [(streams_pb2.STREAM_METHOD_PRODUCE, b""), (streams_pb2.STREAM_METHOD_FETCH, bytes(8))],
    ids=["produce", "fetch"],
)
async def test_a_message_stream_is_checked_like_a_call(
    cluster: Cluster, method: streams_pb2.StreamMethod.ValueType, before: bytes
) -> None:
    """`before`: what comes before the request, here a correlation id."""
    async with AsyncAdmin(cluster.bootstrap) as admin:
        (broker, *_) = (await admin.describe_cluster()).brokers
    stream = await open_tcp_stream(f"{broker.host}:{broker.stream_port}")
    await stream.send(streams_pb2.StreamHello(method=method).SerializeToString())
    await stream.send(before + EMPTY_PARTITIONS[: 2 * MIB])
    with pytest.raises(ClusterError, match=r"more than (21|150)000 fields"):
        await stream.receive()
    await stream.close()


@pytest.mark.parametrize(
    ("method", "limit"),
    [
        ("BrokerService/Metadata", 8 * MIB),
        ("BrokerService/Fetch", 8 * MIB),
        ("BrokerService/InitProducer", 16 * 1024),
        ("GroupService/FindCoordinator", 16 * 1024),
        ("AdminService/CreateTopics", MIB),
    ],
)
def test_a_method_takes_no_more_than_it_needs(cluster: Cluster, method: str, limit: int) -> None:
    error = send(cluster.brokers[0].address, method, bytes(limit + 1))
    assert error.code is ErrorCode.INVALID_REQUEST
    what = f"has {limit + 1} bytes, the limit is {limit}; split it into several requests"
    assert what in error.message


def test_the_controller_refuses_it_as_well(cluster: Cluster) -> None:
    body = b"\x12\x00" * (MIB // 2)
    error = send(cluster.controller.address, "AdminService/CreateTopics", body)
    assert "has more than 50000 fields, which is the limit" in error.message


def test_what_is_garbage_behind_a_good_beginning_is_called_so(cluster: Cluster) -> None:
    body = b"\x32\x00" * 10_000 + b"\x32\xff\xff\xff\x7f"
    error = send(cluster.brokers[0].address, "BrokerService/Produce", body)
    assert error.message == f"the request's {len(body)} bytes are not a valid message of Produce"


async def test_lists_have_limits_that_say_what_to_do(cluster: Cluster) -> None:
    """The bytes of these are few, and parsed."""
    for method, request, what in (
        ("BrokerService/Fetch", pb.FetchRequest, b"\x32\x00"),
        ("BrokerService/ListOffsets", pb.ListOffsetsRequest, b"\x1a\x00"),
        ("BrokerService/Produce", pb.ProduceRequest, b"\x32\x00"),
    ):
        error = await asyncio.to_thread(send, cluster.brokers[0].address, method, what * 20_001)
        assert error.code is ErrorCode.INVALID_REQUEST
        assert "names 20001 partitions, the limit is 20000; split it" in error.message, request
