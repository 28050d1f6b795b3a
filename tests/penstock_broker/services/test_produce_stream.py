"""A stream of produces: order, so many at a time, and nothing left behind however it ends.

Over gRPC and over a message stream.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol, TypeVar, cast

import pytest
from support.produce_scene import (
    Played,
    PlayedMessages,
    PlayedStream,
    ProduceScene,
    part,
    produce_scene,
    request,
)
from support.waiting import wait_until_async

from penstock.errors import ClusterError, ErrorCode, UnreachableError
from penstock.proto.v1 import broker_pb2 as pb
from penstock_broker.services.opening import Opened
from penstock_broker.services.producing import PendingProduce
from penstock_broker.serving.callers import Caller
from penstock_broker.serving.edge import first_error

S = TypeVar("S", bound=Played)


@asynccontextmanager
async def served(stream: S) -> AsyncIterator[tuple[S, "asyncio.Task[None]"]]:
    """A stream that is served until the end of the block."""
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(stream.run())
        yield stream, serving
        serving.cancel()


class Streaming(Protocol):
    """Serves a stream over one carrier."""

    def __call__(
        self, scene: ProduceScene, *, inflight_max: int = 64
    ) -> AbstractAsyncContextManager[tuple[Played, "asyncio.Task[None]"]]: ...


@pytest.fixture(params=[PlayedStream, PlayedMessages], ids=["grpc", "messages"])
def carrier(request: pytest.FixtureRequest) -> type[Played]:
    kind: type[Played] = request.param
    return kind


@pytest.fixture
def streaming(carrier: type[Played]) -> Streaming:
    @asynccontextmanager
    async def serve(
        scene: ProduceScene, *, inflight_max: int = 64
    ) -> AsyncIterator[tuple[Played, "asyncio.Task[None]"]]:
        async with served(carrier(scene, inflight_max=inflight_max)) as both:
            yield both

    return serve


async def another_stream_is_served(scene: ProduceScene) -> None:
    """Whatever could happen on the first one has happened by then."""
    async with served(PlayedStream(scene)) as (stream, _):
        stream.send(request(1, part()))
        await wait_until_async(lambda: stream.answered == [1], what="an answer")


async def test_requests_are_appended_in_the_order_they_came(streaming: Streaming) -> None:
    """What comes at once, what comes while others wait, and what comes after an answer."""
    async with produce_scene() as scene, streaming(scene) as (stream, _):
        sequence = iter(range(30))

        def send(count: int) -> None:
            for number in [next(sequence) for _ in range(count)]:
                batch = part(
                    value=b"%d" % number, producer_id=5, producer_epoch=0, base_sequence=number
                )
                stream.send(request(number, batch))

        send(10)
        await wait_until_async(lambda: len(stream.answers) == 10, what="answers")
        scene.store.flowing.clear()
        send(5)
        await wait_until_async(lambda: stream.taken == 15, what="they are read")
        send(15)
        await wait_until_async(lambda: stream.taken == 30, what="all are read")
        assert len(stream.answers) == 10
        scene.store.flowing.set()
        await wait_until_async(lambda: len(stream.answers) == 30, what="answers")
        by_number = sorted(stream.answers, key=lambda answer: answer.correlation_id)
        assert [answer.results[0].base_offset for answer in by_number] == list(range(30))


async def test_an_answer_does_not_wait_for_those_of_earlier_requests(streaming: Streaming) -> None:
    async with produce_scene() as scene, streaming(scene) as (stream, _):
        stream.send(request(1, part("far")), request(2, part("t")), request(3, part("far")))
        await wait_until_async(lambda: stream.taken == 3, what="all are read")
        await wait_until_async(lambda: stream.answered == [2], what="the one that can be answered")
        stream.send(request(4, part("far"), acks=pb.ACKS_LEADER))
        await wait_until_async(lambda: stream.answered == [2, 4], what="another one")


async def test_a_request_is_answered_when_its_last_partition_is(streaming: Streaming) -> None:
    async with produce_scene() as scene, streaming(scene) as (stream, _):
        stream.send(request(1, part("t"), part("none"), part("far")))
        await wait_until_async(scene.stored, what="a partition is done")
        stream.send(request(2))
        await wait_until_async(lambda: stream.answered == [2], what="the next request")
        await scene.lead(1, 2)
        await wait_until_async(lambda: stream.answered == [2, 1], what="another leads")
        results = stream.answers[1].results
        assert [result.topic for result in results] == ["t", "none", "far"]
        codes = [ErrorCode(result.error.code).name for result in results[1:]]
        assert not results[0].HasField("error")
        assert codes == ["UNKNOWN_TOPIC", "NOT_LEADER"]


async def test_reading_stops_while_so_many_requests_wait_for_their_answers(
    streaming: Streaming,
) -> None:
    async with produce_scene() as scene, streaming(scene, inflight_max=3) as (stream, _):
        stream.send(*(request(number, part("far")) for number in range(10)))
        await wait_until_async(lambda: stream.taken >= 3, what="as many as may wait")
        await another_stream_is_served(scene)
        assert stream.taken == 3 + stream.reads_ahead
        assert scene.replica("far").marks.log_end_offset == 3
        await scene.lead(1, 2)
        await wait_until_async(lambda: stream.answered == list(range(10)), what="all answers")


async def test_reading_stops_while_so_many_answers_wait_to_be_read(streaming: Streaming) -> None:
    async with produce_scene() as scene, streaming(scene, inflight_max=3) as (stream, _):
        stream.readable.clear()
        stream.send(*(request(number, part()) for number in range(10)))
        await wait_until_async(lambda: len(scene.stored()) == 3, what="three are appended")
        await another_stream_is_served(scene)
        assert (stream.taken, len(scene.stored())) == (3 + stream.reads_ahead, 3 + 1)
        assert scene.budget.taken_bytes == 0, "they are answered, though nobody reads that"
        stream.readable.set()
        await wait_until_async(lambda: stream.answered == list(range(10)), what="all answers")


async def test_the_payload_of_an_unread_answers_request_is_not_kept(
    streaming: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[pb.ProduceRequest] = []
    async with produce_scene() as scene, streaming(scene) as (stream, _):
        submit = scene.producing.submit

        def noted(
            each: pb.ProduceRequest,
            answered: Callable[[PendingProduce], None],
            opened: Opened | None,
            who: Caller,
        ) -> PendingProduce:
            requests.append(each)
            return submit(each, answered, opened, who)

        monkeypatch.setattr(scene.producing, "submit", noted)
        stream.readable.clear()
        stream.send(request(1, part()), request(2, part()))
        await wait_until_async(lambda: len(scene.stored()) == 2, what="both are appended")
        await wait_until_async(lambda: stream.writing, what="an answer waits to be read")
        nobody_elses = [sys.getrefcount(each) for each in [object()]]
        assert [sys.getrefcount(each) for each in requests] == 2 * nobody_elses


async def test_a_client_that_has_sent_all_gets_all_answers() -> None:
    async with produce_scene() as scene, served(PlayedStream(scene)) as (stream, serving):
        scene.store.flowing.clear()
        stream.send(*(request(number, part()) for number in range(3)))
        stream.close()
        await wait_until_async(lambda: len(scene.replica().pending) == 3, what="all wait")
        assert not serving.done()
        scene.store.flowing.set()
        await serving
        assert stream.answered == [0, 1, 2]
        assert len(scene.observed_s) == 3


async def test_a_stream_without_requests_ends_with_the_client(streaming: Streaming) -> None:
    async with produce_scene() as scene, streaming(scene) as (stream, serving):
        stream.close()
        await serving
        assert stream.answers == []


@pytest.mark.parametrize("stage", ["its turn", "its acks", "the client"])
async def test_a_cancelled_stream_leaves_nothing_behind_whatever_a_request_waits_for(
    streaming: Streaming, stage: str
) -> None:
    async with produce_scene() as scene, streaming(scene, inflight_max=2) as (stream, serving):
        if stage == "the client":
            stream.readable.clear()
        else:
            scene.store.flowing.clear()
        stream.send(*(request(number, part()) for number in range(3 if stage == "its turn" else 2)))
        if stage == "the client":
            await wait_until_async(lambda: stream.writing, what="an answer waits to be read")
            await wait_until_async(lambda: len(scene.observed_s) == 2, what="both are answered")
        else:
            await wait_until_async(lambda: len(scene.replica().pending) == 2, what="both wait")
            assert scene.budget.taken_bytes > 0
        serving.cancel()
        await asyncio.wait([serving])
        assert scene.budget.taken_bytes == 0
        assert len(scene.observed_s) == 2, "each that was appended is timed, once"
        scene.store.flowing.set()
        await wait_until_async(lambda: not scene.replica().pending, what="the machine answers")
        assert scene.budget.taken_bytes == 0
        assert scene.count("records_in") == 2, "they are in the log"
        assert stream.answers == []
        scene.clock.move(120_000)
        assert scene.clock.alarms == [], "nobody waits for anything"
        assert scene.count("produce_errors", error="REQUEST_TIMED_OUT") == 0


async def test_a_request_that_makes_no_sense_ends_the_stream_and_what_waits_on_it(
    carrier: type[Played],
) -> None:
    unknown = cast("pb.Acks.ValueType", 77)
    async with produce_scene() as scene:
        stream = carrier(scene)
        stream.send(request(1, part("far")), request(2, part(), acks=unknown), request(3, part()))
        with pytest.raises(ExceptionGroup) as failed:
            await stream.run()
        (error,) = failed.value.exceptions
        assert isinstance(error, ClusterError)
        assert error.code is ErrorCode.INVALID_REQUEST
        assert scene.budget.taken_bytes == 0
        assert scene.stored() == [], "what comes behind it is not appended"
        assert len(scene.observed_s) == 2


# ---------------------------------------------------------------- message streams alone


async def test_answers_are_posted_while_the_client_reads_and_stay_in_order_when_it_does_not() -> (
    None
):
    async with produce_scene() as scene, served(PlayedMessages(scene)) as (stream, _):
        stream.send(*(request(number, part()) for number in range(5)))
        await wait_until_async(lambda: len(stream.answers) == 5, what="answers")
        assert stream.posted == 5, "none took the way over the writer's task"
        stream.readable.clear()
        stream.send(request(5, part()))
        await wait_until_async(lambda: stream.writing, what="an answer waits to be read")
        stream.readable.set()
        stream.send(request(6), request(7))
        assert stream.posted == 5, "the one before is not written yet"
        await wait_until_async(lambda: len(stream.answers) == 8, what="the others")
        assert stream.answered == list(range(8))
        stream.send(request(8))
        assert (stream.answered, stream.posted) == (list(range(9)), 6), "in the same turn"


@pytest.mark.parametrize(
    "sent",
    [pb.ProduceRequest(), request(0, *(pb.ProducePartition(topic="none") for _ in range(64)))],
    ids=["empty", "refused"],
)
async def test_others_have_turns_among_many_requests_that_are_answered_at_once(
    sent: pb.ProduceRequest,
) -> None:
    """They are never in flight, so that the limit of those in flight does not hold them."""
    many, turns = 500, 0
    loop = asyncio.get_running_loop()
    async with produce_scene() as scene, served(PlayedMessages(scene)) as (stream, serving):
        stream.send(request(1, part()))
        await wait_until_async(lambda: stream.answered == [1], what="it is served")

        def turn() -> None:
            nonlocal turns
            turns += 1
            if len(stream.answers) < many:
                loop.call_soon(turn)

        loop.call_soon(turn)
        stream.send(*[sent] * many)
        assert len(stream.answers) <= 1 + 64
        stream.send(request(2, part()))
        await wait_until_async(lambda: len(stream.answers) == many + 2, what="all answers")
        assert stream.answered[-1] == 2
        assert turns >= many // 64
        stream.send(*[sent] * many)
        stream.close()
        await serving
        assert stream.taken == 2 * many + 2, "also of a client that has ended the stream"


@pytest.mark.parametrize("ends", ["vanish", "close"])
async def test_nothing_is_kept_for_a_client_that_is_gone(ends: str) -> None:
    """Who ends a message stream takes no answers any more, unlike with gRPC's."""
    async with produce_scene() as scene:
        stream = PlayedMessages(scene, inflight_max=2)
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(failure(stream.run()))
            stream.send(request(1, part("far")), request(2, part("far")))
            await wait_until_async(lambda: stream.taken == 2, what="both wait")
            assert scene.budget.taken_bytes > 0
            getattr(stream, ends)()
            error = await serving
        assert isinstance(error, UnreachableError) is (ends == "vanish")
        assert scene.budget.taken_bytes == 0
        assert (stream.answers, len(scene.observed_s)) == ([], 2)
        assert scene.replica("far").marks.log_end_offset == 2


async def test_a_held_client_that_ends_the_stream_has_what_it_sent_appended() -> None:
    async with (
        produce_scene() as scene,
        served(PlayedMessages(scene, inflight_max=2)) as (
            stream,
            serving,
        ),
    ):
        scene.store.flowing.clear()
        stream.send(*(request(number, part()) for number in range(5)))
        await wait_until_async(lambda: stream.taken == 2, what="as many as may wait")
        stream.close()
        scene.store.flowing.set()
        await serving
        await wait_until_async(lambda: len(scene.stored()) == 5, what="all are appended")


@pytest.mark.parametrize(
    ("sent", "code", "words"),
    [
        (b"\xff\xff\xff", ErrorCode.INVALID_REQUEST, "a producer sent 3 bytes"),
        (
            pb.ProduceRequest(cluster_id="another").SerializeToString(),
            ErrorCode.CLUSTER_ID_MISMATCH,
            "the request is for cluster another",
        ),
    ],
    ids=["garbage", "another cluster"],
)
async def test_what_is_no_request_for_this_broker_ends_the_stream(
    sent: bytes, code: ErrorCode, words: str
) -> None:
    async with produce_scene() as scene:
        stream = PlayedMessages(scene)
        stream.send(request(1, part("far")))
        stream.send_bytes(sent, request(2, part()).SerializeToString())
        error = await failure(stream.run())
        assert isinstance(error, ClusterError)
        assert error.code is code
        assert words in str(error)
        assert scene.budget.taken_bytes == 0
        assert scene.stored() == [], "what comes behind it is not appended"


@pytest.mark.parametrize("named", ["", "cluster"])
async def test_a_request_may_name_its_cluster(named: str) -> None:
    async with produce_scene() as scene, served(PlayedMessages(scene)) as (stream, _):
        stream.send(pb.ProduceRequest(cluster_id=named, correlation_id=3))
        await wait_until_async(lambda: stream.answered == [3], what="an answer")
        scene.cluster_id = ""
        stream.send(pb.ProduceRequest(cluster_id="any", correlation_id=4))
        await wait_until_async(lambda: stream.answered == [3, 4], what="it does not know its own")


async def failure(served: Coroutine[None, None, None]) -> BaseException | None:
    """What ended a stream; None: nothing did."""
    try:
        await served
    except BaseExceptionGroup as group:
        return first_error(group)
    return None
