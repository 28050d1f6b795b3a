"""The receiving half, in turns of the loop that no carrier can be made to have."""

import asyncio

from penstock.rpc.streams.end import MESSAGE_BYTES, StreamEnd
from penstock.rpc.streams.frames import Received


async def test_what_arrives_between_a_release_and_its_turn_comes_behind_what_waited() -> None:
    end, seen = StreamEnd(), list[Received]()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(end.deliver(seen.append))
        await asyncio.sleep(0)  # polls nothing: a turn of the loop
        end.hold()
        end.arrived(b"1")
        end.release()
        end.arrived(b"2")
        assert seen == []
        await asyncio.sleep(0)  # polls nothing: a turn of the loop
        assert seen == [b"1", b"2"]
        end.arrived(b"3")
        assert seen == [b"1", b"2", b"3"], "in the turn in which it arrives"
        end.over(None)


async def test_a_stream_that_is_held_again_before_the_turn_stays_held() -> None:
    end, seen = StreamEnd(), list[Received]()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(end.deliver(seen.append))
        await asyncio.sleep(0)  # polls nothing: a turn of the loop
        end.hold()
        end.arrived(b"1")
        end.release()
        end.hold()
        await asyncio.sleep(0)  # polls nothing: a turn of the loop
        assert (seen, end.waiting_bytes) == ([], 1 + MESSAGE_BYTES)
        end.release()
        await asyncio.sleep(0)  # polls nothing: a turn of the loop
        assert (seen, end.waiting_bytes) == ([b"1"], 0)
        end.over(None)
