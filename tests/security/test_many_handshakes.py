"""Many TLS connections at once: a broker goes on."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from support.cluster import Cluster

from penstock.proto.v1 import broker_pb2
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceStub

CLIENTS = 1_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, brokers=1, secure=True) as running:
        yield running


async def ask(address: str, credentials: grpc.ChannelCredentials) -> str:
    """The cluster id, over a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(address, credentials, options) as channel:
        request = broker_pb2.MetadataRequest()
        call = BrokerServiceStub(channel).Metadata(request, timeout=120, wait_for_ready=True)
        return str((await call).cluster_id)


async def test_a_broker_survives_a_thousand_handshakes_at_once(cluster: Cluster) -> None:
    """gRPC asks for certificates on its own threads; to replace them each time ended the process,
    in the middle of handshakes that still referred to the former ones."""
    assert cluster.certificates is not None
    credentials = cluster.certificates.broker(0).tls.channel_credentials()
    address = cluster.internal[0]
    async with asyncio.timeout(300), asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(ask(address, credentials)) for _ in range(CLIENTS)]
    assert len({call.result() for call in calls}) == 1
    cluster.brokers[0].check_running()
