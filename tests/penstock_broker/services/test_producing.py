"""Produce requests: a result for each partition, an answer to each request, every byte back."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from support.jumping_clock import DAY_MS, JumpingClock
from support.led_partitions import running
from support.produce_scene import TIMEOUT_MS, ProduceScene, part, produce_scene, request
from support.waiting import wait_until_async
from support.wire import make_batch

from penstock.core.authorization import AccessRole, Rule
from penstock.core.wall_clock import HOLD_MS
from penstock.errors import ClusterError, ErrorCode, OverloadedError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.batches import batch_to_wire
from penstock.rpc.errors import error_from_wire
from penstock_broker.services.producing import GRACE_MS, SWEEP_S, PendingProduce
from penstock_broker.serving.callers import Caller, Role

SWEEP_MS = round(SWEEP_S * 1000)
MINUTE_MS = 60_000


class Answers(list[PendingProduce]):
    """What was answered, in order."""

    def take(self, pending: PendingProduce) -> None:
        self.append(pending)

    @property
    def codes(self) -> list[str]:
        return [
            ErrorCode(result.error.code).name if result.HasField("error") else "done"
            for pending in self
            for result in pending.response.results
        ]


async def test_what_no_machine_answers_has_an_unknown_outcome_after_the_grace() -> None:
    async with produce_scene() as scene:
        answers = Answers()
        scene.producing.submit(request(1, part("far"), part("t")), answers.take)
        await wait_until_async(lambda: scene.count("records_in") == 1, what="one is acknowledged")
        scene.clock.move(TIMEOUT_MS + GRACE_MS - 1)
        assert answers == []
        assert scene.budget.taken_bytes > 0
        scene.clock.move(1 + SWEEP_MS)
        assert answers.codes == ["REQUEST_TIMED_OUT", "done"]
        late, done = answers[0].response.results
        assert "unknown" in late.error.message
        assert (late.topic, late.base_offset, done.base_offset) == ("far", -1, 0)
        assert scene.budget.taken_bytes == 0


async def test_a_machine_that_answers_too_late_is_not_heard_but_counted() -> None:
    async with produce_scene() as scene:
        answers = Answers()
        scene.store.flowing.clear()
        scene.producing.submit(request(1, part()), answers.take)
        scene.clock.move(TIMEOUT_MS + GRACE_MS + SWEEP_MS)
        told = [pending.response.SerializeToString() for pending in answers]
        scene.store.flowing.set()
        await wait_until_async(lambda: not scene.replica().pending, what="the machine answers")
        assert [pending.response.SerializeToString() for pending in answers] == told
        assert (answers.codes, scene.budget.taken_bytes) == (["REQUEST_TIMED_OUT"], 0)
        assert scene.count("records_in") == 1


async def test_requests_are_late_by_their_own_deadlines() -> None:
    async with produce_scene() as scene:
        answers = Answers()
        for number, timeout_ms in enumerate([30_000, 5_000, 10_000]):
            asked = request(number, part("far"))
            asked.timeout_ms = timeout_ms
            scene.producing.submit(asked, answers.take)
        late = []
        for _ in range(3):
            scene.clock.move(GRACE_MS + SWEEP_MS + 5_000)
            late.append([pending.response.correlation_id for pending in answers])
        assert late == [[1], [1, 2], [1, 2]]
        scene.clock.move(30_000)
        assert len(answers) == 3


async def test_time_is_looked_at_only_while_a_request_waits() -> None:
    async with produce_scene() as scene:
        answers = Answers()
        assert scene.clock.alarms == []
        for number in range(3):
            scene.producing.submit(request(number, part("far")), answers.take)
        assert len(scene.clock.alarms) == 1, "one for all"
        scene.clock.move(5 * SWEEP_MS)
        assert len(scene.clock.alarms) == 1
        await scene.lead(1, 2)
        assert len(answers) == 3
        scene.clock.move(SWEEP_MS)
        assert scene.clock.alarms == []
        scene.producing.submit(request(4, part("none")), answers.take)
        assert scene.clock.alarms == [], "it was refused at once"
        await scene.lead(0, 3)
        await wait_until_async(lambda: scene.replica("far").marks.is_leader, what="it leads again")
        scene.producing.submit(request(5, part("far")), answers.take)
        assert len(scene.clock.alarms) == 1


async def test_nothing_is_appended_while_the_broker_refuses() -> None:
    async with produce_scene() as scene:
        answers = Answers()
        scene.refusal = ClusterError("the disk is full", ErrorCode.DISK_FULL)
        scene.producing.submit(request(1, part(), part("far")), answers.take)
        assert answers.codes == ["DISK_FULL", "DISK_FULL"]
        assert scene.count("produce_errors", error="DISK_FULL") == 2
        assert scene.budget.taken_bytes == 0
        scene.producing.submit(request(2), answers.take)
        assert len(answers) == 2, "a request for nothing is answered all the same"


async def test_what_the_budget_has_no_room_for_is_told_to_come_back() -> None:
    held = make_batch([b"a"]).size_bytes
    async with produce_scene(budget_bytes=held) as scene:
        answers = Answers()
        scene.producing.submit(request(1, part("far"), part("t"), part("far")), answers.take)
        assert scene.budget.taken_bytes == held, "of the first"
        assert answers == []
        scene.producing.submit(request(2, part()), answers.take)
        assert answers.codes == ["OVERLOADED"]
        assert answers[0].response.throttle_ms == OverloadedError("").throttle_ms > 0
        assert scene.budget.taken_bytes == held, "what it was refused for is still there"
        await scene.lead(1, 2)
        assert sorted(answers.codes) == ["NOT_LEADER", "OVERLOADED", "OVERLOADED", "OVERLOADED"]
        assert scene.budget.taken_bytes == 0


async def test_a_user_who_fills_their_half_keeps_nobody_else_out() -> None:
    held = make_batch([b"a"]).size_bytes
    async with produce_scene(budget_bytes=4 * held) as scene:
        answers = Answers()
        ada, bob = (Caller(Role.USER, f"cert:{name}") for name in ("ada", "bob"))
        everybody = Rule(principals=("*",), role=AccessRole.ADMIN)
        scene.view.rules.put_cluster((everybody,), {})
        for number in range(3):  # "far" has a follower, which acknowledges nothing
            scene.producing.submit(request(number, part("far")), answers.take, who=ada)
        assert answers.codes == ["OVERLOADED"]
        assert "share" in answers[0].response.results[0].error.message
        scene.producing.submit(request(3, part()), answers.take, who=bob)
        await wait_until_async(lambda: answers.codes == ["OVERLOADED", "done"], what="bob's")
        await scene.lead(1, 2)
        assert (scene.budget.taken_bytes, scene.budget.taken_by) == (0, {})


async def test_a_refused_batch_gives_its_bytes_back() -> None:
    async with produce_scene() as scene:
        answers = Answers()
        broken = part()
        broken.batch.crc ^= 1
        scene.producing.submit(request(1, broken, pb.ProducePartition(topic="t")), answers.take)
        assert answers.codes == ["CORRUPT_BATCH", "INVALID_REQUEST"]
        assert scene.budget.taken_bytes == 0


async def test_a_defect_in_the_middle_of_a_request_gives_its_bytes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with produce_scene() as scene:
        answers = Answers()
        find = scene.locator.replica

        def found(topic: str, *rest: Any) -> object:
            if topic == "far":
                raise ZeroDivisionError
            return find(topic, *rest)

        monkeypatch.setattr(scene.locator, "replica", found)
        with pytest.raises(ZeroDivisionError):
            scene.producing.submit(request(1, part("t"), part("far")), answers.take)
        assert scene.budget.taken_bytes == 0
        await wait_until_async(lambda: not scene.replica().pending, what="the machine answers")
        assert (answers, scene.budget.taken_bytes) == ([], 0)


@pytest.mark.parametrize("answered", [False, True])
async def test_a_cancelled_call_gives_its_bytes_back(answered: bool) -> None:
    """`answered`: between the cancellation and the turn in which the call notices it."""
    async with produce_scene() as scene, asyncio.TaskGroup() as tasks:
        call = tasks.create_task(scene.producing.produce(request(1, part("far"))))
        await wait_until_async(lambda: scene.replica("far").pending, what="it waits")
        assert scene.budget.taken_bytes > 0
        call.cancel()
        if answered:
            gone = ClusterError("gone", ErrorCode.UNKNOWN_TOPIC)
            scene.replica("far").fail_pending(gone)
        await asyncio.wait([call])
        assert call.cancelled()
        assert scene.budget.taken_bytes == 0
        scene.clock.move(SWEEP_MS)
        assert scene.clock.alarms == [], "nobody waits for it"


async def test_a_call_is_answered_as_a_request_on_a_stream_is() -> None:
    async with produce_scene() as scene:
        answer = await scene.producing.produce(request(7, part(), part("none")))
        assert answer.correlation_id == 7
        done, refused = answer.results
        assert (done.base_offset, done.leader_epoch, done.acks) == (0, 1, pb.ACKS_ALL)
        assert ErrorCode(refused.error.code) is ErrorCode.UNKNOWN_TOPIC
        assert scene.budget.taken_bytes == 0


# ---------------------------------------------------------------- the broker's clock


class Stamping(ProduceScene):
    """A partition of a topic with these settings, and a clock that the test moves."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(budget_bytes=1 << 20)
        self.topics_config |= settings
        self.use(JumpingClock())

    def use(self, jumping: JumpingClock) -> JumpingClock:
        """The clock of the broker that leads from now on."""
        self.jumping = self.producing._clock = jumping
        jumping.wall.look()
        return jumping

    async def append(self, timestamp_ms: int = 0) -> int:
        """How far its append time is from the right time; raises PenstockError."""
        batch = make_batch([b"a"], timestamps_ms=timestamp_ms or self.jumping.right_ms())
        part = pb.ProducePartition(topic="t", batch=batch_to_wire(batch))
        [result] = (await self.producing.produce(request(1, part))).results
        if result.HasField("error"):
            raise error_from_wire(result.error)
        return result.append_time_ms - self.jumping.right_ms()


STAMPED = {"message.timestamp.type": "LogAppendTime"}


@pytest.mark.parametrize(
    ("setting", "code"),
    [
        ({"max.message.bytes": "1024"}, "RECORD_TOO_LARGE"),
        ({"cleanup.policy": "compact"}, "INVALID_RECORD"),
        ({"message.timestamp.before.max.ms": "1000"}, "INVALID_TIMESTAMP"),
    ],
)
async def test_a_retry_is_acknowledged_although_the_settings_have_changed(
    setting: dict[str, str], code: str
) -> None:
    """The answer to the first request is lost; nothing like it is taken by then."""
    async with produce_scene() as scene:
        answers = Answers()
        written_ms = scene.clock.wall_ms() - MINUTE_MS
        numbers = {"producer_id": 7, "producer_epoch": 0, "timestamps_ms": written_ms}
        first = part("t", b"x" * 2_000, base_sequence=0, **numbers)
        scene.producing.submit(request(1, first), answers.take)
        await wait_until_async(lambda: answers.codes == ["done"], what="it is stored")
        scene.topics_config |= setting
        await scene.lead(0, 2)
        scene.producing.submit(request(2, first), answers.take)
        await wait_until_async(lambda: len(answers) == 2, what="the retry is answered")
        assert answers.codes == ["done", "done"]
        assert [pending.response.results[0].duplicate for pending in answers] == [False, True]
        following = part("t", b"x" * 2_000, base_sequence=1, **numbers)
        scene.producing.submit(request(3, following), answers.take)
        assert answers.codes[2:] == [code]
        assert len(scene.stored()) == 1


ROUNDED_MS = 1
"""Of two clocks, each is cut to milliseconds."""


async def test_append_times_go_on_while_the_clock_is_in_doubt() -> None:
    async with running(Stamping(STAMPED)) as scene:
        assert -MINUTE_MS < await scene.append() <= ROUNDED_MS
        scene.jumping.ahead_ms = 365 * DAY_MS
        assert -MINUTE_MS < await scene.append() <= ROUNDED_MS
        scene.jumping.passed_ms = HOLD_MS
        assert await scene.append() > 364 * DAY_MS, "somebody has set the clock"


async def test_append_times_do_not_fall_behind_those_of_the_last_leader() -> None:
    """Its clock was nine minutes ahead, which is no reason for doubt."""
    async with running(Stamping(STAMPED)) as scene:
        scene.jumping.ahead_ms = 9 * MINUTE_MS
        assert await scene.append() > 8 * MINUTE_MS
        scene.use(JumpingClock()).ahead_ms = -DAY_MS
        assert await scene.append() > 8 * MINUTE_MS
        scene.jumping.ahead_ms = 0
        assert await scene.append() <= ROUNDED_MS


@pytest.mark.parametrize("ahead_ms", [8 * DAY_MS, -8 * DAY_MS])
async def test_producers_are_measured_by_both_times_while_the_clock_is_in_doubt(
    ahead_ms: int,
) -> None:
    bounds = {"message.timestamp.before.max.ms": "3600000"}
    bounds |= {"message.timestamp.after.max.ms": "3600000"}
    async with running(Stamping(bounds)) as scene:
        scene.jumping.ahead_ms = ahead_ms
        await scene.append()
        await scene.append(scene.jumping.wall_ms())
        for wrong_ms in (min(0, ahead_ms) - 2 * HOLD_MS, max(0, ahead_ms) + 2 * HOLD_MS):
            with pytest.raises(ClusterError) as raised:
                await scene.append(scene.jumping.right_ms() + wrong_ms)
            assert raised.value.code is ErrorCode.INVALID_TIMESTAMP
