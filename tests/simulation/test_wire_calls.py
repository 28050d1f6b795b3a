"""The contract of a transport: calls, on gRPC over loopback and on the simulator.

Servers and connections are in test_wire_servers.py, streams in test_wire_streams.py, their flow
control in test_wire_flow.py; what only the simulator has is in test_wire.py.
"""

import asyncio
from contextvars import ContextVar
from functools import partial
from typing import Any

import grpc
import pytest
from support.transport_handlers import Hanging, echo, failed, unary_of
from support.transport_scenes import TRANSPORTS, Methods, Play, Scene, serve, unary

from penstock.errors import CurrentLeader, ErrorCode, NotLeaderError, OverloadedError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceServicer, BrokerServiceStub
from penstock.proto.v1.broker_pb2_grpc import add_BrokerServiceServicer_to_server as add_service
from penstock.rpc.errors import error_from_rpc
from penstock.rpc.streams.contract import Clients
from penstock_broker.serving.edge import Edge
from penstock_broker.serving.listener import Listener, came_to, for_caller

State = grpc.ChannelConnectivity


@pytest.fixture(params=list(TRANSPORTS))
def play(request: pytest.FixtureRequest) -> Play:
    """Plays a test's body on one transport."""
    return TRANSPORTS[request.param]


def test_a_call_is_answered_with_what_its_handler_returns(play: Play) -> None:
    async def body(scene: Scene) -> None:
        async def handler(request: bytes, context: Any) -> bytes:
            assert context.peer().startswith("ipv4:")
            assert ("key", "value") in [tuple(pair) for pair in context.invocation_metadata()]
            assert 50 < context.time_remaining() < 61  # the clocks of both ends are not one
            context.set_trailing_metadata((("more", "later"),))
            return request + b"!"

        await serve(scene, {"/t/m": unary(handler)})
        async with scene.transport.open(scene.address) as channel:
            call = unary_of(channel, "/t/m")(b"x", timeout=60, metadata=(("key", "value"),))
            assert not call.done()
            assert await call == b"x!"
            assert call.done()
            assert not call.cancel(), "it is over"
            assert await call.code() is grpc.StatusCode.OK
            assert ("more", "later") in [tuple(pair) for pair in await call.trailing_metadata()]

    play(body)


def test_many_calls_at_once_get_their_own_answers(play: Play) -> None:
    async def body(scene: Scene) -> None:
        await serve(scene, {"/t/echo": unary(echo)})
        async with scene.transport.open(scene.address) as channel:
            method = unary_of(channel, "/t/echo")
            calls = [method(str(number).encode()) for number in range(100)]
            assert [await call for call in calls] == [str(n).encode() for n in range(100)]

    play(body)


class Service(BrokerServiceServicer):
    """One of the project's services, behind its stubs."""

    async def Metadata(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        if request.topics:
            leader = CurrentLeader(7, 3, "broker-7", 9092)
            raise NotLeaderError("ask broker 7", ErrorCode.NOT_LEADER, leader)
        info = pb.BrokerInfo(host="inside", external_host="outside")
        return pb.MetadataResponse(cluster_id="c", brokers=[for_caller(info)])


def test_generated_stubs_and_servicers_work_with_the_edge_between_them(play: Play) -> None:
    async def body(scene: Scene) -> None:
        seen: list[str] = []
        outside = partial(came_to, Listener.OUTSIDE)
        edge = Edge(lambda: "c", lambda method, _s: seen.append(method), outside)
        service = Service()  # type: ignore[abstract]  # other calls are refused by its base
        await serve(scene, lambda server: add_service(service, server), [edge])
        async with scene.transport.open(scene.address) as channel:
            stub: Any = BrokerServiceStub(channel)
            answer = await stub.Metadata(pb.MetadataRequest(cluster_id="c"))
            assert answer.cluster_id == "c"
            assert answer.brokers[0].host == "outside"
            refused = error_from_rpc(await failed(stub.Metadata(pb.MetadataRequest(topics=["t"]))))
            assert isinstance(refused, NotLeaderError)
            assert refused.leader == CurrentLeader(7, 3, "broker-7", 9092)
            foreign = await failed(stub.Metadata(pb.MetadataRequest(cluster_id="other")))
            assert error_from_rpc(foreign).code is ErrorCode.CLUSTER_ID_MISMATCH
            method = "/penstock.proto.v1.BrokerService/Metadata"
            garbage = await failed(unary_of(channel, method)(b"\xff"))
            assert error_from_rpc(garbage).code is ErrorCode.INVALID_REQUEST
            nobodys = error_from_rpc(await failed(stub.Fetch(pb.FetchRequest())))
            assert nobodys.code is ErrorCode.INTERNAL, "the generated base class raises"
            assert "Metadata" in seen

    play(body)


def test_every_call_has_a_context_of_its_own_taken_where_the_server_was_started(play: Play) -> None:
    mark: ContextVar[str] = ContextVar("mark", default="")

    async def body(scene: Scene) -> None:
        async def handler(_request: bytes, _context: Any) -> bytes:
            before = mark.get()
            mark.set("of another call")
            return before.encode()

        async def start(transport: Any) -> None:
            mark.set("of the server")
            server = transport.server([])
            server.add_generic_rpc_handlers((Methods({"/t/m": unary(handler)}),))
            transport.bind(server, scene.address, Clients.USERS)
            await server.start()

        await scene.there(start)
        async with scene.transport.open(scene.address) as channel:
            for _ in range(3):
                assert await unary_of(channel, "/t/m")(b"") == b"of the server"

    play(body)


def test_at_its_deadline_a_call_fails_and_its_handler_is_cancelled(play: Play) -> None:
    async def body(scene: Scene) -> None:
        hanging = Hanging()
        await serve(scene, {"/t/m": unary(hanging.handle)})
        async with scene.transport.open(scene.address) as channel:
            while not hanging.began.is_set():  # on a busy machine it may not get that far
                error = await failed(unary_of(channel, "/t/m")(b"", timeout=0.3))
                assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                assert error_from_rpc(error).code is ErrorCode.REQUEST_TIMED_OUT
            await hanging.ended.wait()
            assert hanging.cancelled

    play(body)


def test_a_caller_that_cancels_reads_that_it_did_and_the_handler_is_cancelled(play: Play) -> None:
    async def body(scene: Scene) -> None:
        hanging = Hanging()
        await serve(scene, {"/t/m": unary(hanging.handle)})
        async with scene.transport.open(scene.address) as channel:
            call = unary_of(channel, "/t/m")(b"")
            await hanging.began.wait()
            assert call.cancel()
            assert call.done()
            assert call.cancelled()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await call.code() is grpc.StatusCode.CANCELLED
            await hanging.ended.wait()
            assert hanging.cancelled

    play(body)


def test_a_timeout_around_a_call_cancels_it(play: Play) -> None:
    async def body(scene: Scene) -> None:
        hanging = Hanging()
        await serve(scene, {"/t/m": unary(hanging.handle)})
        async with scene.transport.open(scene.address) as channel:
            while not hanging.began.is_set():
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.3):
                        await unary_of(channel, "/t/m")(b"")
            await hanging.ended.wait()
            assert hanging.cancelled

    play(body)


def test_a_closed_channel_cancels_its_calls_but_not_their_callers(play: Play) -> None:
    async def body(scene: Scene) -> None:
        hanging = Hanging()
        await serve(scene, {"/t/m": unary(hanging.handle)})
        channel = scene.transport.open(scene.address)
        call = unary_of(channel, "/t/m")(b"")
        await hanging.began.wait()
        await channel.close()
        with pytest.raises(asyncio.CancelledError):
            await call
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()
        assert channel.get_state() is State.SHUTDOWN
        with pytest.raises(grpc.aio.UsageError):
            unary_of(channel, "/t/m")(b"")
        await hanging.ended.wait()
        await channel.close()

    play(body)


def test_what_a_handler_raises_ends_the_call_with_unknown(play: Play) -> None:
    async def body(scene: Scene) -> None:
        async def handler(_request: bytes, context: Any) -> bytes:
            context.add_done_callback(lambda _: ended.append("handler"))
            raise ValueError("three is too many")

        async def coded(_request: bytes, context: Any) -> bytes:
            context.set_code(grpc.StatusCode.NOT_FOUND)
            context.set_details("as it says")
            return b"dropped"

        ended: list[str] = []
        await serve(scene, {"/t/m": unary(handler), "/t/coded": unary(coded)})
        async with scene.transport.open(scene.address) as channel:
            error = await failed(unary_of(channel, "/t/m")(b""))
            assert error.code() is grpc.StatusCode.UNKNOWN
            assert "three is too many" in str(error.details())
            error = await failed(unary_of(channel, "/t/coded")(b""))
            assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "as it says")
            assert ended == ["handler"]

    play(body)


def test_a_method_that_nobody_serves_is_unimplemented(play: Play) -> None:
    async def body(scene: Scene) -> None:
        await serve(scene, {})
        async with scene.transport.open(scene.address) as channel:
            error = await failed(unary_of(channel, "/t/m")(b""))
            assert error.code() is grpc.StatusCode.UNIMPLEMENTED
            assert "older" in error_from_rpc(error).message

    play(body)


def test_calls_above_the_limit_are_refused_as_overload(play: Play) -> None:
    async def body(scene: Scene) -> None:
        both = [Hanging(), Hanging()]
        await serve(
            scene,
            {"/t/0": unary(both[0].handle), "/t/1": unary(both[1].handle), "/t/echo": unary(echo)},
            rpcs_max=2,
        )
        async with scene.transport.open(scene.address) as channel:
            calls = [unary_of(channel, f"/t/{number}")(b"") for number in range(2)]
            for hanging in both:
                await hanging.began.wait()
            for _ in range(3):
                refused = error_from_rpc(await failed(unary_of(channel, "/t/echo")(b"")))
                assert isinstance(refused, OverloadedError)
            for call, hanging in zip(calls, both, strict=True):
                call.cancel()
                await hanging.ended.wait()
            code = grpc.StatusCode.RESOURCE_EXHAUSTED
            while code is grpc.StatusCode.RESOURCE_EXHAUSTED:  # while the two are ending
                code = await unary_of(channel, "/t/echo")(b"").code()
            assert code is grpc.StatusCode.OK

    play(body)
