"""Attack 20: connections that never become any take descriptors, and not all of them.

Position: anyone who reaches a port, without credentials. Attempt: connect more often than the
process may have descriptors, and say nothing. Outcome: it goes on; probes and clients that are
connected are answered.
"""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.cluster import Cluster
from support.few_descriptors_child import DESCRIPTORS, LAUNCHER

from penstock.proto.v1 import admin_pb2
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1.admin_pb2_grpc import AdminServiceStub
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceStub
from penstock.rpc.channel import open_channel
from penstock_broker.descriptors import raise_limit

SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    path: Path = tmp_path_factory.mktemp("half-open")
    with Cluster(path, secure=True, launcher=LAUNCHER) as running:
        yield running


@contextmanager
def half_open(address: str, count: int) -> Iterator[None]:
    raise_limit()  # of this process, which needs a descriptor for each as well
    host, _, port = address.rpartition(":")
    with ExitStack() as connections:
        for _ in range(count):
            connections.enter_context(socket.create_connection((host, int(port)), 20))
        yield


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_more_connections_than_descriptors_leave_a_broker_running(cluster: Cluster) -> None:
    broker = cluster.brokers[0]
    assert broker.health_address is not None
    assert cluster.certificates is not None
    credentials = cluster.certificates.broker(0).tls
    with ExitStack() as stack:
        known = stack.enter_context(open_channel(cluster.internal[0], credentials))
        BrokerServiceStub(known).Metadata(pb.MetadataRequest(), timeout=60)
        for address in (broker.address, cluster.internal[0]):
            stack.enter_context(half_open(address, DESCRIPTORS))
        assert descriptors(broker.pid) < DESCRIPTORS - 100
        for _ in range(3):
            with open_channel(broker.health_address) as channel:
                check = health_pb2_grpc.HealthStub(channel).Check
                answer = check(health_pb2.HealthCheckRequest(), timeout=20)
                assert answer.status == SERVING
        BrokerServiceStub(known).Metadata(pb.MetadataRequest(), timeout=60)
        topic = admin_pb2.NewTopic(topic="t", partitions=4, replication_factor=1)
        request = admin_pb2.CreateTopicsRequest(topics=[topic])
        created = AdminServiceStub(known).CreateTopics(request, timeout=60)  # files are written
        assert not created.results[0].HasField("error")
        broker.check_running()
