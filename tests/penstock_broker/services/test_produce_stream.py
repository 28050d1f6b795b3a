"""A ProduceStream: order, so many at a time, and nothing left behind however it ends."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
from support.produce_scene import PlayedStream, ProduceScene, part, produce_scene, request
from support.waiting import wait_until_async

from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import broker_pb2 as pb


@asynccontextmanager
async def streaming(
    scene: ProduceScene, *, inflight_max: int = 64
) -> AsyncIterator[tuple[PlayedStream, "asyncio.Task[None]"]]:
    """A stream that is served until the end of the block."""
    stream = PlayedStream(scene, inflight_max=inflight_max)
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(stream.run())
        yield stream, serving
        serving.cancel()


async def another_stream_is_served(scene: ProduceScene) -> None:
    """Whatever could happen on the first one has happened by then."""
    async with streaming(scene) as (stream, _):
        stream.send(request(1, part()))
        await wait_until_async(lambda: stream.answered == [1], what="an answer")


async def test_requests_are_appended_in_the_order_they_came() -> None:
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


async def test_an_answer_does_not_wait_for_those_of_earlier_requests() -> None:
    async with produce_scene() as scene, streaming(scene) as (stream, _):
        stream.send(request(1, part("far")), request(2, part("t")), request(3, part("far")))
        await wait_until_async(lambda: stream.taken == 3, what="all are read")
        await wait_until_async(lambda: stream.answered == [2], what="the one that can be answered")
        stream.send(request(4, part("far"), acks=pb.ACKS_LEADER))
        await wait_until_async(lambda: stream.answered == [2, 4], what="another one")


async def test_a_request_is_answered_when_its_last_partition_is() -> None:
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


async def test_reading_stops_while_so_many_requests_wait_for_their_answers() -> None:
    async with produce_scene() as scene, streaming(scene, inflight_max=3) as (stream, _):
        stream.send(*(request(number, part("far")) for number in range(10)))
        await wait_until_async(lambda: stream.taken == 4, what="one more is read than may wait")
        await another_stream_is_served(scene)
        assert stream.taken == 4
        assert scene.replica("far").marks.log_end_offset == 3
        await scene.lead(1, 2)
        await wait_until_async(lambda: stream.answered == list(range(10)), what="all answers")


async def test_reading_stops_while_so_many_answers_wait_to_be_read() -> None:
    async with produce_scene() as scene, streaming(scene, inflight_max=3) as (stream, _):
        stream.readable.clear()
        stream.send(*(request(number, part()) for number in range(10)))
        await wait_until_async(lambda: len(scene.stored()) == 3, what="three are appended")
        await another_stream_is_served(scene)
        assert (stream.taken, len(scene.stored())) == (4, 3 + 1)
        assert scene.budget.taken_bytes == 0, "they are answered, though nobody reads that"
        stream.readable.set()
        await wait_until_async(lambda: stream.answered == list(range(10)), what="all answers")


async def test_the_payload_of_an_unread_answers_request_is_not_kept() -> None:
    async with produce_scene() as scene, streaming(scene) as (stream, _):
        stream.readable.clear()
        requests = [request(1, part()), request(2, part())]
        before = [sys.getrefcount(each) for each in requests]
        stream.send(*requests)
        await wait_until_async(lambda: len(scene.stored()) == 2, what="both are appended")
        await wait_until_async(lambda: stream.writing, what="an answer waits to be read")
        assert [sys.getrefcount(each) for each in requests] == before


async def test_a_client_that_has_sent_all_gets_all_answers() -> None:
    async with produce_scene() as scene, streaming(scene) as (stream, serving):
        scene.store.flowing.clear()
        stream.send(*(request(number, part()) for number in range(3)))
        stream.close()
        await wait_until_async(lambda: len(scene.replica().pending) == 3, what="all wait")
        assert not serving.done()
        scene.store.flowing.set()
        await serving
        assert stream.answered == [0, 1, 2]
        assert len(scene.observed_s) == 3


async def test_a_stream_without_requests_ends_with_the_client() -> None:
    async with produce_scene() as scene, streaming(scene) as (stream, serving):
        stream.close()
        await serving
        assert stream.answers == []


@pytest.mark.parametrize("stage", ["its turn", "its acks", "the client"])
async def test_a_cancelled_stream_leaves_nothing_behind_whatever_a_request_waits_for(
    stage: str,
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


async def test_a_request_that_makes_no_sense_ends_the_stream_and_what_waits_on_it() -> None:
    unknown = cast("pb.Acks.ValueType", 77)
    async with produce_scene() as scene:
        stream = PlayedStream(scene)
        stream.send(request(1, part("far")), request(2, part(), acks=unknown), request(3, part()))
        with pytest.raises(ExceptionGroup) as failed:
            await stream.run()
        (error,) = failed.value.exceptions
        assert isinstance(error, ClusterError)
        assert error.code is ErrorCode.INVALID_REQUEST
        assert scene.budget.taken_bytes == 0
        assert scene.stored() == [], "what comes behind it is not appended"
        assert len(scene.observed_s) == 2
