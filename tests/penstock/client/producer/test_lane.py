"""The lane against a model broker: whatever is lost, late or refused, order and once hold (I8, I9).

The broker model knows the documented rules only: per producer epoch a gap is refused, one of the
last five batches again is a duplicate, a lower epoch is fenced. Requests and answers get lost,
the broker refuses for now or for good, and deadlines pass. Then the log is compared with what the
lane's owner was told.
"""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.client.producer.lane import Entry, Lane
from penstock.core.types import ProducerId, ProducerIdentity
from penstock.errors import (
    ClusterError,
    ErrorCode,
    OverloadedError,
    PenstockError,
    UnreachableError,
)

LOST = UnreachableError("connection lost")


def refused(code: ErrorCode) -> ClusterError:
    return ClusterError(code.name, code)


def lane(**changes: Any) -> Lane[str]:
    options: dict[str, Any] = {
        "max_in_flight": 5, "idempotent": True, "backoff_ms": 10, "backoff_max_ms": 100,
    }  # fmt: skip
    made: Lane[str] = Lane(**{**options, **changes})
    if made.idempotent:
        made.adopt(ProducerIdentity(ProducerId(7), 0))
    return made


def test_sequences_follow_each_other_and_wrap() -> None:
    made = lane()
    made._next_sequence = 2**31 - 3
    first, second = made.take("a", 3, 99), made.take("b", 2, 99)
    assert (first.sequence, second.sequence) == (2**31 - 3, 0)


def test_at_most_five_batches_are_in_flight() -> None:
    made = lane()
    for name in "abcde":
        assert made.can_take(0)
        made.take(name, 1, 99)
    assert not made.can_take(0)


def test_the_parts_of_a_batch_that_was_too_large_share_its_sequences() -> None:
    made = lane(max_in_flight=2)
    made._next_sequence = 2**31 - 4
    first, second = made.take("ab", 7, 99), made.take("c", 2, 99)
    made.split(first, [("a", 4), ("b", 3)])
    assert made.resend(0) is None, "it waits for the answer of the other"
    assert not made.failed(second, refused(ErrorCode.OUT_OF_ORDER_SEQUENCE), 0)
    assert not made.needs_identity
    again = [made.resend(made.retry_at_ms) for _ in range(3)]
    assert [(one.batch, one.sequence) for one in again if one] == [("a", 2**31 - 4), ("b", 0)]
    assert not made.can_take(made.retry_at_ms)
    for one in again[:2]:
        assert one is not None
        made.succeeded(one)
    last = made.resend(made.retry_at_ms)
    assert last is second
    assert last.sequence == 3


def test_a_retriable_failure_rewinds_and_keeps_every_sequence() -> None:
    made = lane()
    entries = [made.take(name, 10, 10_000) for name in "abc"]
    assert not made.failed(entries[0], refused(ErrorCode.NOT_ENOUGH_REPLICAS), 0)
    assert made.resend(1_000) is None, "two are still outstanding"
    assert not made.can_take(1_000), "nothing may overtake"
    assert not made.failed(entries[1], refused(ErrorCode.OUT_OF_ORDER_SEQUENCE), 0)
    made.succeeded(entries[2])
    again = [made.resend(1_000), made.resend(1_000), made.resend(1_000)]
    assert again == [entries[0], entries[1], None]
    assert [entry.sequence for entry in entries] == [0, 10, 20]


def test_nothing_new_is_taken_while_something_old_is_still_to_be_sent_again() -> None:
    made = lane()
    first, _ = made.take("a", 1, 10_000), made.take("b", 1, 10_000)
    for entry in list(made.window):
        made.failed(entry, LOST, 0)
    assert made.resend(1_000) is first
    assert not made.can_take(1_000)


def test_failures_pause_longer_and_longer_and_a_new_leader_ends_the_pause() -> None:
    made = lane()
    entry = made.take("a", 1, 10**9)
    at_ms, pauses = 0, []
    for _ in range(6):
        made.failed(entry, LOST, at_ms)
        pauses.append(made.retry_at_ms - at_ms)
        assert made.resend(made.retry_at_ms - 1) is None
        at_ms = made.retry_at_ms
        assert made.resend(at_ms) is entry
    assert pauses == [10, 20, 40, 80, 100, 100]
    made.failed(entry, LOST, at_ms)
    made.retry_now()
    assert made.resend(at_ms) is entry


def test_an_overloaded_broker_says_how_long_to_wait() -> None:
    made = lane()
    entry = made.take("a", 1, 10**9)
    made.failed(entry, OverloadedError("full", throttle_ms=5_000), 0)
    assert made.resend(4_999) is None
    assert made.resend(5_000) is entry


def test_after_a_definite_failure_the_rest_goes_on_under_a_new_epoch() -> None:
    made = lane()
    first, second = made.take("a", 10, 10_000), made.take("b", 10, 10_000)
    assert made.failed(first, refused(ErrorCode.RECORD_TOO_LARGE), 0)
    assert not first.unknown
    assert not made.needs_identity, "the second's answer is still out"
    made.failed(second, refused(ErrorCode.OUT_OF_ORDER_SEQUENCE), 0)
    assert made.needs_identity
    assert made.adopt(ProducerIdentity(ProducerId(7), 1)) == []
    assert made.resend(1_000) is second
    assert (second.sequence, second.identity) == (0, ProducerIdentity(ProducerId(7), 1))


def test_what_may_have_landed_is_not_sent_again_under_new_numbers() -> None:
    made = lane()
    first, second = made.take("a", 10, 10_000), made.take("b", 10, 10_000)
    made.failed(second, LOST, 0)
    assert made.failed(first, refused(ErrorCode.INVALID_TIMESTAMP), 0)
    assert made.adopt(ProducerIdentity(ProducerId(7), 1)) == [second]
    assert second.unknown


def test_an_expired_batch_is_reported_at_once_and_its_late_answer_settles_the_gap() -> None:
    made = lane()
    first, second = made.take("a", 1, 100), made.take("b", 1, 10_000)
    assert made.expire(99) == []
    assert made.expire(100) == [first]
    assert first.unknown
    assert made.expire(101) == [], "reported once"
    made.succeeded(first)
    made.succeeded(second)
    assert made.can_take(101), "it had landed: there is no gap"


def test_a_lost_answer_of_an_expired_batch_needs_a_new_epoch() -> None:
    made = lane()
    first = made.take("a", 1, 100)
    made.expire(100)
    assert not made.failed(first, LOST, 200), "it was reported before"
    assert made.needs_identity


def test_a_broker_that_forgot_the_producer_gets_a_new_epoch() -> None:
    made = lane()
    entry = made.take("a", 1, 10_000)
    made.failed(entry, refused(ErrorCode.OUT_OF_ORDER_SEQUENCE), 0)
    assert made.needs_identity


def test_without_idempotence_there_are_no_numbers_and_one_in_flight() -> None:
    made = lane(idempotent=False, max_in_flight=1)
    entry = made.take("a", 1, 10_000)
    assert (entry.sequence, entry.identity) == (-1, None)
    assert not made.can_take(0)
    made.failed(entry, LOST, 0)
    assert not made.needs_identity
    assert made.resend(1_000) is entry


@dataclass
class ModelBroker:
    """The leader's rules about producers, and its log of batch names."""

    log: list[str] = field(default_factory=list)
    epoch: int = -1
    expected: int = 0
    recent: dict[int, str] = field(default_factory=dict)

    def produce(
        self, entry: Entry[str], sequence: int, identity: ProducerIdentity
    ) -> PenstockError | None:
        if identity.epoch < self.epoch:
            return refused(ErrorCode.PRODUCER_FENCED)
        if identity.epoch > self.epoch:
            if sequence != 0:
                return refused(ErrorCode.OUT_OF_ORDER_SEQUENCE)
            self.epoch, self.expected, self.recent = identity.epoch, 0, {}
        if sequence in self.recent and self.recent[sequence] == entry.batch:
            return None
        if sequence != self.expected:
            return refused(ErrorCode.OUT_OF_ORDER_SEQUENCE)
        self.log.append(entry.batch)
        self.expected += entry.record_count
        self.recent[sequence] = entry.batch
        self.recent = dict(list(self.recent.items())[-5:])
        return None


class World:
    """A lane, its owner and a broker, one event at a time."""

    def __init__(self) -> None:
        self.lane = lane()
        self.broker = ModelBroker()
        self.now_ms = 0
        self.epoch = 0
        self.sent: list[tuple[Entry[str], int, ProducerIdentity]] = []
        self.answers: list[tuple[Entry[str], PenstockError | None]] = []
        self.made = 0
        self.verdicts: dict[str, str] = {}

    def send(self, entry: Entry[str]) -> None:
        assert entry.identity is not None
        self.sent.append((entry, entry.sequence, entry.identity))

    def step(self, choice: int) -> None:
        self.now_ms += 7
        for entry in self.lane.expire(self.now_ms):
            self.verdicts[entry.batch] = "unknown" if entry.unknown else "failed"
        if self.lane.needs_identity:
            self.epoch += 1
            for entry in self.lane.adopt(ProducerIdentity(ProducerId(7), self.epoch)):
                self.verdicts[entry.batch] = "unknown"
        match choice % 10:
            case 0 | 1 | 2:
                self.produce_more()
            case 3 | 4:
                self.deliver(None)
            case 5:
                self.deliver(ErrorCode.NOT_ENOUGH_REPLICAS)
            case 6:
                self.deliver(ErrorCode.RECORD_TOO_LARGE if choice % 3 == 0 else None)
            case 7 | 8:
                self.answer()
            case _:
                self.cut(choice)

    def produce_more(self) -> None:
        entry = self.lane.resend(self.now_ms)
        if entry is None and self.lane.can_take(self.now_ms):
            name = f"{self.made:04}"
            self.made += 1
            entry = self.lane.take(name, 1 + self.made % 3, self.now_ms + 150)
        if entry is not None:
            self.send(entry)

    def deliver(self, code: ErrorCode | None) -> None:
        """The broker takes the oldest request; one stream, so in order."""
        if not self.sent:
            return
        entry, sequence, identity = self.sent.pop(0)
        error = self.broker.produce(entry, sequence, identity) if code is None else refused(code)
        self.answers.append((entry, error))

    def answer(self) -> None:
        """The lane hears the oldest answer."""
        if not self.answers:
            return
        entry, error = self.answers.pop(0)
        if error is None:
            ghost = entry.ghost
            self.lane.succeeded(entry)
            if not ghost:
                self.verdicts[entry.batch] = "stored"
        elif (
            error.code is ErrorCode.RECORD_TOO_LARGE
            and entry.record_count > 1
            and not (entry.ghost or entry.unknown)
        ):
            rest = entry.record_count - 1
            self.lane.split(entry, [(f"{entry.batch}a", 1), (f"{entry.batch}b", rest)])
        elif self.lane.failed(entry, error, self.now_ms):
            self.verdicts[entry.batch] = "unknown" if entry.unknown else "failed"

    def cut(self, choice: int) -> None:
        """The connection ends: answers are lost, requests under way land or do not."""
        lost = [entry for entry, _ in self.answers] + [entry for entry, _, _ in self.sent]
        landing = choice // 10 % (len(self.sent) + 1)
        for entry, sequence, identity in self.sent[:landing]:
            self.broker.produce(entry, sequence, identity)
        self.answers.clear()
        self.sent.clear()
        for entry in lost:
            if self.lane.failed(entry, LOST, self.now_ms):
                self.verdicts[entry.batch] = "unknown" if entry.unknown else "failed"


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(0, 999), min_size=20, max_size=300))
def test_nothing_is_lost_doubled_or_reordered_whatever_happens(choices: list[int]) -> None:
    world = World()
    for choice in choices:
        world.step(choice)
    log = world.broker.log
    assert len(set(log)) == len(log), f"doubled: {log}"
    assert log == sorted(log), f"reordered: {log}"
    stored = [name for name, verdict in world.verdicts.items() if verdict == "stored"]
    failed = [name for name, verdict in world.verdicts.items() if verdict == "failed"]
    assert set(stored) <= set(log), f"acknowledged and lost: {set(stored) - set(log)}"
    assert not set(failed) & set(log), f"failed for certain and there: {set(failed) & set(log)}"


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 999), min_size=20, max_size=200))
def test_a_lane_always_gets_going_again_once_the_faults_end(choices: list[int]) -> None:
    world = World()
    for choice in choices:
        world.step(choice)
    before = len(world.broker.log)
    for _ in range(60):  # longer than every deadline and pause: 60 rounds of 28 ms
        for choice in (0, 3, 7, 0):
            world.step(choice)
    assert len(world.broker.log) > before + 20
