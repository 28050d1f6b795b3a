"""20,000 idle streams must not have a process restarted: health answers on a port of its own.

Position: anyone who reaches a port. Attempt: take every call that the server allows, and hold on.
Outcome: the kubelet's probes are answered. Fewer streams than 20,000 here, against a limit that is
lower by as much.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from support.cluster import Cluster
from support.processes import ReservedPort
from support.waiting import wait_until_async

from penstock.rpc.channel import open_aio_channel, open_channel
from penstock.rpc.transport import GrpcTransport
from penstock_broker.serving.probes import CALLS_MAX, Probes

RPCS_MAX = 100
LIVENESS = "penstock.liveness"
CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"
METADATA = "/penstock.proto.v1.BrokerService/Metadata"


class Victim:
    """A broker and its controller, each with a port for probes."""

    def __init__(self, path: Path) -> None:
        self._ports = [ReservedPort(), ReservedPort()]
        self.probes, self.controller_probes = (port.address for port in self._ports)
        limit = {"rpcs.max": str(RPCS_MAX)}
        self.cluster = Cluster(path, broker_config=limit, start=False)
        self.cluster.brokers[0].arguments += ["--health-listen", self.probes]
        self.cluster.controller.arguments += ["--health-listen", self.controller_probes]
        self.cluster.start()
        self.clients = self.cluster.brokers[0].address

    def close(self) -> None:
        self.cluster.close()
        for port in self._ports:
            port.close()


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    made = Victim(tmp_path_factory.mktemp("victim"))
    yield made
    made.close()


async def probe(address: str, service: str = LIVENESS) -> grpc.StatusCode | int:
    """The status that a kubelet's probe sees; gRPC's code if there is none."""
    async with open_aio_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            request = health_pb2.HealthCheckRequest(service=service)
            answer = await stub.Check(request, timeout=20, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            return error.code()
        return int(answer.status)


SERVING = int(health_pb2.HealthCheckResponse.SERVING)


@asynccontextmanager
async def idle_streams(address: str, method: str, count: int, refused: int) -> AsyncIterator[None]:
    """Opens calls, sends nothing, and waits until so many of them were refused."""
    async with open_aio_channel(address) as channel:
        open_call: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
        open_call = channel.stream_stream(method)
        calls = [open_call() for _ in range(count)]
        await wait_until_async(
            lambda: sum(call.done() for call in calls) >= refused, what=f"{refused} are refused"
        )
        yield
        for call in calls:
            call.cancel()


async def test_idle_calls_at_the_clients_port_do_not_fail_a_probe(victim: Victim) -> None:
    """Streams have a limit of their own there; calls that never send their request do not."""
    async with idle_streams(victim.clients, METADATA, 2 * RPCS_MAX, RPCS_MAX):
        assert await probe(victim.clients) is grpc.StatusCode.RESOURCE_EXHAUSTED, "full"
        for _ in range(5):
            assert await probe(victim.probes) == SERVING
            assert await probe(victim.probes, "") == SERVING


@asynccontextmanager
async def probes_alone() -> AsyncIterator[str]:
    """Their address."""
    with ReservedPort() as port:
        probes = Probes(health.aio.HealthServicer())
        await probes.listen(GrpcTransport(), port.address)
        yield port.address
        await probes.close()


async def test_idle_calls_at_the_port_for_probes_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_broker.serving.probes.REQUEST_S", 3600.0)
    async with (
        probes_alone() as address,
        idle_streams(address, CHECK, 10 * CALLS_MAX, 9 * CALLS_MAX),
    ):
        for _ in range(5):
            assert await probe(address, "") == SERVING


async def test_a_call_without_a_request_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_broker.serving.probes.REQUEST_S", 0.05)
    async with probes_alone() as address, idle_streams(address, CHECK, 1, 1):
        assert await probe(address, "") == SERVING


@pytest.mark.parametrize("of", ["probes", "controller_probes"])
async def test_nothing_but_a_check_is_served_there(victim: Victim, of: str) -> None:
    address: str = getattr(victim, of)
    async with open_aio_channel(address) as channel:
        for method in (WATCH, METADATA, "/penstock.proto.v1.AdminService/DeleteTopics"):
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(b"", timeout=20)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED, method
    assert await probe(address, "no.such.Service") is grpc.StatusCode.NOT_FOUND
    assert await probe(address) == SERVING


async def test_readiness_at_the_port_for_probes_is_the_processes_own(victim: Victim) -> None:
    """It says what the clients' port says, and not that a process serves that does not."""

    async def agree() -> bool:
        """Calls of the test before may fill the clients' port for a moment yet."""
        return await probe(victim.probes, "") == await probe(victim.clients, "") == SERVING

    await wait_until_async(agree, what="both say that it serves")
    with open_channel(victim.controller_probes) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        request = health_pb2.HealthCheckRequest()
        await wait_until_async(
            lambda: check(request, timeout=20).status == SERVING, what="the controller is ready"
        )
