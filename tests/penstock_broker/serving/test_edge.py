"""The border: whatever goes wrong inside, the caller reads one clear error and no trace."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from support.waiting import wait_until_async

from penstock.errors import ClusterError, ErrorCode, OverloadedError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceServicer, BrokerServiceStub
from penstock.proto.v1.broker_pb2_grpc import add_BrokerServiceServicer_to_server as add_service
from penstock.rpc.channel import SERVER_OPTIONS, open_aio_channel
from penstock.rpc.errors import error_from_rpc
from penstock_broker.serving import edge
from penstock_broker.serving.edge import Edge, note_wait

if TYPE_CHECKING:
    from penstock.proto.v1.broker_pb2_grpc import BrokerServiceAsyncStub

Answer = Callable[[], Coroutine[Any, Any, Any]]


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator["BrokerServiceAsyncStub"]:
    """A server whose every call does `answer`."""

    class Service(BrokerServiceServicer):
        async def Metadata(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
            return await answer()

        async def Subscribe(  # type: ignore[override]  # noqa: N802 - written with context.write
            self, request_iterator: Any, context: Any
        ) -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(answer())

        Produce = Fetch = ListOffsets = InitProducer = Metadata
        ProduceStream = Metadata  # type: ignore[assignment]  # streams are served alike

    async with serving_all(Service()) as stub:
        yield stub


@asynccontextmanager
async def serving_all(
    service: BrokerServiceServicer,
    observe: Callable[[str, float], None] = lambda method, seconds: None,
) -> AsyncIterator["BrokerServiceAsyncStub"]:
    """A server behind the border."""
    server = grpc.aio.server(interceptors=[Edge(lambda: "own", observe)], options=SERVER_OPTIONS)
    add_service(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with open_aio_channel(f"127.0.0.1:{port}") as channel:
        yield BrokerServiceStub(channel)
    await server.stop(None)


async def broken() -> None:
    raise ZeroDivisionError("a defect with a secret in its message")


async def overloaded() -> None:
    raise OverloadedError("come back", 123)


async def test_a_defect_is_internal_and_its_details_stay_here(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(broken) as stub:
        for call in (stub.Metadata(pb.MetadataRequest()), anext(aiter(stub.Subscribe(iter([]))))):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await call
            error = error_from_rpc(failed.value)
            assert error.code is ErrorCode.INTERNAL
            assert "secret" not in str(error)
    assert "ZeroDivisionError" in caplog.text


async def test_a_typed_error_arrives_typed_from_calls_and_streams() -> None:
    async with serving(overloaded) as stub:
        for call in (stub.Metadata(pb.MetadataRequest()), anext(aiter(stub.Subscribe(iter([]))))):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await call
            error = error_from_rpc(failed.value)
            assert isinstance(error, OverloadedError)
            assert error.throttle_ms == 123


async def test_an_error_in_the_middle_of_a_streams_first_write_arrives() -> None:
    writing = asyncio.Event()

    class Service(BrokerServiceServicer):
        async def Subscribe(  # type: ignore[override]  # noqa: N802 - written with context.write
            self, request_iterator: Any, context: Any
        ) -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.write(context))
                await writing.wait()
                await overloaded()

        async def write(self, context: Any) -> None:
            writing.set()
            await context.write(pb.SubscribeResponse())

    service = Service()  # type: ignore[abstract]  # other calls are unimplemented
    async with serving_all(service) as stub:
        call = stub.Subscribe(iter([pb.SubscribeRequest()]), timeout=120)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            async for _ in call:
                pass
        assert isinstance(error_from_rpc(failed.value), OverloadedError)


async def test_bytes_pass_as_they_are() -> None:
    async def answer() -> bytes:
        return pb.MetadataResponse(cluster_id="x").SerializeToString()

    async with serving(answer) as stub:
        assert (await stub.Metadata(pb.MetadataRequest())).cluster_id == "x"


async def test_another_cluster_is_refused_before_the_handler() -> None:
    class Service(BrokerServiceServicer):
        async def Metadata(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
            await broken()

        async def Subscribe(  # type: ignore[override]  # noqa: N802 - written with context.write
            self, request_iterator: Any, context: Any
        ) -> None:
            await anext(request_iterator)
            await broken()

    service = Service()  # type: ignore[abstract]  # other calls are unimplemented
    async with serving_all(service) as stub:
        other = pb.SubscribeRequest(cluster_id="other")
        for call in (
            stub.Metadata(pb.MetadataRequest(cluster_id="other")),
            anext(aiter(stub.Subscribe(iter([other])))),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await call
            error = error_from_rpc(failed.value)
            assert isinstance(error, ClusterError)
            assert error.code is ErrorCode.CLUSTER_ID_MISMATCH


async def test_a_stream_that_waits_does_not_hold_its_last_request() -> None:
    """It may wait for long, and requests are large."""
    taken: list[pb.ProduceRequest] = []

    class Service(BrokerServiceServicer):
        async def ProduceStream(  # type: ignore[override]  # noqa: N802 - written with context.write
            self, request_iterator: Any, context: Any
        ) -> None:
            async for request in request_iterator:
                taken.append(request)
                del request
                await context.write(pb.ProduceResponse())

    service = Service()  # type: ignore[abstract]  # other calls are unimplemented
    async with serving_all(service) as stub:
        call = stub.ProduceStream(timeout=120)
        await call.write(pb.ProduceRequest())
        await call.read()
        await wait_until_async(lambda: sys.getrefcount(taken[0]) == 2, what="the list alone has it")
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


async def test_what_a_call_waited_on_purpose_is_not_in_its_time() -> None:
    seen: list[tuple[str, float]] = []

    class Service(BrokerServiceServicer):
        async def Fetch(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
            note_wait(600.0)
            note_wait(400.0)
            return pb.FetchResponse()

        async def Metadata(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
            return pb.MetadataResponse()

    service = Service()  # type: ignore[abstract]  # other calls are unimplemented
    async with serving_all(service, lambda *each: seen.append(each)) as stub:
        await stub.Fetch(pb.FetchRequest())
        await stub.Metadata(pb.MetadataRequest())
    (fetch, fetch_s), (metadata, metadata_s) = seen
    assert (fetch, metadata) == ("Fetch", "Metadata")
    assert -1000 < fetch_s < 0, "1,000 s less than it took"
    assert metadata_s > 0, "of another call"


async def test_a_request_that_does_not_come_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What proved who calls would count for as long as the caller likes."""
    monkeypatch.setattr(edge, "REQUEST_S", 0.05)
    server = grpc.aio.server(interceptors=[Edge(lambda: "own", lambda *_: None)])
    add_service(BrokerServiceServicer(), server)  # type: ignore[abstract]  # nothing is handled
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with open_aio_channel(f"127.0.0.1:{port}") as channel:
        withheld: Any = channel.stream_stream("/penstock.proto.v1.BrokerService/Metadata")
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await withheld(timeout=120).read()
        error = error_from_rpc(failed.value)
        assert error.code is ErrorCode.INVALID_REQUEST
        assert "did not arrive within 0.05 s" in error.message
    await server.stop(None)
