"""When a transformer commits, gives up and tries again: the pure model, and long random lives."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client import (
    AsyncTransformer,
    HandlerFailedError,
    Record,
    TopicPartition,
    TransformConfig,
)
from penstock.client.transformer.config import check_handle, transactional_id
from penstock.client.transformer.machine import (
    PASS_MAX_MS,
    POLL_MAX_MS,
    State,
    Step,
    TransformModel,
)
from penstock.errors import MisuseError

PARTITIONS = 3


def config(**options: Any) -> TransformConfig:
    given: dict[str, Any] = {
        "group_id": "g",
        "source": "in",
        "dead_letter_topic": "dead",
        **options,
    }
    return TransformConfig(**given)


def record(offset: int, partition: int = 0) -> Record:
    return Record("in", partition, offset, 0, b"key", b"%d" % offset, (("own", b"1"),))


def opened(**options: object) -> TransformModel:
    model = TransformModel(config(**options))
    assert model.step(0) is Step.POLL
    assert model.polled(3, 0)
    return model


def test_what_was_polled_is_committed_after_the_interval_and_not_before() -> None:
    model = TransformModel(config(commit_interval_ms=50))
    assert model.wait_ms(0) == POLL_MAX_MS
    assert not model.polled(0, 0)
    assert model.state is State.IDLE, "nothing to commit, no transaction"
    assert model.polled(3, 10)
    model.done(3)
    assert (model.step(59), model.wait_ms(59)) == (Step.POLL, 1)
    assert not model.polled(0, 60)
    assert (model.step(60), model.wait_ms(61)) == (Step.COMMIT, 0)
    model.committed(0)
    assert (model.step(60), model.commits, model.committed_records) == (Step.POLL, 1, 3)


def test_after_one_that_is_too_large_transactions_have_half_as_many_records_and_grow() -> None:
    model = TransformModel(config(max_records=300, commit_interval_ms=50))
    assert model.room == 300
    assert model.polled(300, 0)
    model.done(300)
    assert model.too_large()
    model.failed()
    model.recovered()
    assert model.room == 150
    assert model.polled(100, 0)
    model.done(100)
    assert (model.room, model.step(0)) == (50, Step.POLL)
    assert model.polled(50, 0)
    model.done(50)
    assert model.step(0) is Step.COMMIT
    model.committed(0)
    assert model.room == 151
    assert model.polled(1, 0)
    assert model.too_large(in_hand=2), "none is done, but more than one was sent"
    assert model.room == 1
    model.done(1)
    assert not model.too_large(), "one record never fits"


def slow(model: TransformModel, records: int, opened_ms: int, took_ms: int) -> bool:
    """It fails after `took_ms`; whether that was for its duration."""
    assert model.polled(records, opened_ms)
    model.done(records)
    found = model.too_slow(opened_ms + took_ms)
    model.failed()
    model.recovered()
    return found


def test_after_one_that_is_open_for_too_long_transactions_have_half_as_many_records() -> None:
    model = TransformModel(config(max_records=1_000, transaction_timeout_ms=8_000))
    assert not slow(model, 1_000, 0, 7_999), "it failed for another reason"
    assert model.room == 1_000
    assert slow(model, 1_000, 10, 8_000)
    assert model.room == 500
    assert not model.too_slow(10**6), "there is none"
    assert model.polled(500, 20_000)
    model.done(500)
    assert model.step(20_000) is Step.COMMIT, "as many as it may have"
    model.committed(22_001)
    assert model.room == 500, "twice as many would take more than half of the timeout"
    assert model.polled(200, 30_000)
    model.done(200)
    model.committed(30_000)
    assert model.room == 500, "few records say nothing about more"
    assert model.polled(400, 30_000)
    model.done(400)
    model.committed(32_000)
    assert model.room == 800, "twice as many as were fast"
    assert slow(model, 1, 40_000, 9_000)
    assert model.room == 1


def test_one_that_grew_again_after_it_was_too_slow_grows_slowly_when_it_is_too_large() -> None:
    model = TransformModel(config(max_records=300, transaction_timeout_ms=8_000))
    assert slow(model, 300, 0, 8_000)
    assert model.polled(100, 10_000)
    model.done(100)
    assert model.too_large()
    model.failed()
    model.recovered()
    assert model.polled(50, 20_000)
    model.done(50)
    model.committed(20_000)
    assert model.room == 51


def test_a_poll_never_waits_for_long_because_partitions_may_leave_in_it() -> None:
    assert opened(commit_interval_ms=9_000).wait_ms(0) == POLL_MAX_MS


def test_ten_thousand_records_are_committed_at_once() -> None:
    model = opened()
    model.done(9_999)
    assert model.step(0) is Step.POLL
    assert model.handled(record(1), 0)
    assert model.step(0) is Step.COMMIT


def test_positions_behind_offsets_without_records_are_committed_at_once() -> None:
    model = TransformModel(config())
    assert not model.polled(0, 0, passed_over=True)
    assert model.step(0) is Step.COMMIT
    model.committed(0)
    assert model.step(0) is Step.POLL


def test_a_long_pass_is_committed_in_the_middle_and_polls_now_and_then() -> None:
    model = opened(commit_interval_ms=100)
    assert not model.handled(record(0), 99)
    assert model.handled(record(1), 100)
    assert model.step(100) is Step.COMMIT
    model.committed(0)
    assert model.goes_on(100)
    assert model.handled(record(2), 200)
    model.committed(0)
    assert not model.goes_on(PASS_MAX_MS), "partitions may be wanted elsewhere"


def test_a_failure_dooms_all_and_the_pause_doubles_up_to_its_limit() -> None:
    model = opened(backoff_ms=10, backoff_max_ms=35)
    for pause_ms in (10, 20, 35, 35):
        model.failed()
        assert (model.step(0), model.pause_ms) == (Step.RECOVER, pause_ms)
        assert not model.polled(5, 0), "what a poll brings meanwhile is dropped"
    model.recovered()
    assert model.step(0) is Step.POLL
    assert model.polled(1, 0)
    model.committed(0)
    model.polled(1, 0)
    model.failed()
    assert (model.pause_ms, model.aborts) == (10, 2)


def test_lost_partitions_doom_what_is_open_and_nothing_else() -> None:
    model = TransformModel(config())
    model.lost([TopicPartition("in", 0)])
    assert model.state is State.IDLE
    model.polled(1, 0)
    model.lost([TopicPartition("in", 0)])
    assert model.step(0) is Step.RECOVER


def test_stopping_commits_what_is_done_and_gives_up_what_is_doomed() -> None:
    model = opened()
    model.stop()
    assert model.handled(record(0), 0), "no other record"
    assert model.step(0) is Step.COMMIT
    model.committed(0)
    assert not model.goes_on(0)
    assert model.step(0) is Step.END
    doomed = opened()
    doomed.stop()
    doomed.failed()
    assert doomed.step(0) is Step.END


def test_a_record_that_failed_too_often_becomes_a_letter_until_that_is_committed() -> None:
    model = opened(retries=1)
    bad = record(7)
    assert model.letter(bad) is None
    assert model.handler_failed(bad, "ValueError: no") is None
    model.recovered()
    model.polled(2, 0)
    assert not model.waits(bad), "it is the first"
    model.handled(record(6), 0)
    assert model.waits(bad)
    assert model.step(0) is Step.COMMIT, "what is before it needs no repetition"
    model.committed(0)
    model.polled(1, 0)
    assert model.letter(bad) is None
    assert model.handler_failed(bad, "ValueError: still not") is None
    for _ in range(2):  # the first attempt to commit the letter fails
        model.recovered()
        model.polled(1, 0)
        letter = model.letter(bad)
        assert letter is not None
        assert (letter.topic, letter.key, letter.value) == ("dead", b"key", b"7")
        assert dict(letter.headers) == {
            "own": b"1",
            "penstock-dlt-topic": b"in",
            "penstock-dlt-partition": b"0",
            "penstock-dlt-offset": b"7",
            "penstock-dlt-error": b"ValueError: still not",
            "penstock-dlt-attempts": b"2",
        }
        model.handled(bad, 0, as_letter=True)
        model.failed()
        model.recovered()
        model.polled(1, 0)
        model.handled(record(3, 1), 0)
        model.committed(0)  # of another partition: says nothing about this one
        model.polled(1, 0)
        model.failed()
    model.recovered()
    model.polled(1, 0)
    model.handled(bad, 0, as_letter=True)
    model.committed(0)
    assert (model.letter(bad), model.committed_letters) == (None, 1)


def test_failures_are_forgotten_with_the_partition_and_kept_with_the_others() -> None:
    model = opened(retries=0)
    here, there = record(1, 0), record(1, 1)
    model.handler_failed(here, "x")
    model.handler_failed(there, "x")
    model.leaves([TopicPartition("in", 0)])
    assert model.letter(here) is None
    assert model.letter(there) is not None
    model.lost([TopicPartition("in", 1)])
    assert model.letter(there) is None


def test_without_a_dead_letter_topic_the_last_failure_ends_the_loop() -> None:
    model = opened(retries=1, dead_letter_topic="")
    assert model.handler_failed(record(7), "a") is None
    error = model.handler_failed(record(7), "ValueError: b")
    assert isinstance(error, HandlerFailedError)
    assert "in/0 offset 7" in str(error)
    assert "failed 2 times" in str(error)
    assert "ValueError: b" in str(error)


# -- random lives ---------------------------------------------------------------------------------


class World:
    """A cluster in which commits are atomic, a member that obeys the model, and its rivals.

    Checked after each commit: of every partition exactly the records before the committed offset
    are in the output or among the letters, once, in order (I15).
    """

    def __init__(self, random: Random, retries: int) -> None:
        self.random = random
        self.model = TransformModel(config(retries=retries, commit_interval_ms=50))
        self.retries = retries
        self.length = 12
        self.bad = {
            (random.randrange(PARTITIONS), random.randrange(self.length)): random.choice((1, 2, 9))
            for _ in range(4)
        }
        """How often the handler fails on these, if it is asked so often."""
        self.calls: dict[tuple[int, int], int] = {}
        self.committed = dict.fromkeys(range(PARTITIONS), 0)
        self.output: dict[int, list[int]] = {at: [] for at in range(PARTITIONS)}
        self.letters: list[tuple[int, int]] = []
        self.positions: dict[int, int] = {}
        self.open: list[tuple[int, int, bool]] = []
        self.lost_unheard: set[int] = set()
        self.now_ms = 0
        self.calm = False

    def chance(self, of: float) -> bool:
        return not self.calm and self.random.random() < of

    def run(self, steps: int) -> None:
        for number in range(steps * 20):
            self.calm = number > steps
            if self.calm and all(done == self.length for done in self.committed.values()):
                return
            self.now_ms += self.random.choice((0, 1, 30))
            match self.model.step(self.now_ms):
                case Step.POLL:
                    self.poll()
                case Step.COMMIT:
                    self.commit()
                case Step.RECOVER:
                    self.recover()
                case Step.END:
                    raise AssertionError("nobody stops it")
        raise AssertionError(f"never done: {self.committed}")

    def rival(self, partition: int) -> None:
        """Another member is done with some of what it has got."""
        while self.committed[partition] < self.length and self.chance(0.4):
            self.output[partition].append(self.committed[partition])
            self.committed[partition] += 1

    def lose(self) -> None:
        for partition in list(self.positions):
            if self.chance(0.05):
                del self.positions[partition]
                self.lost_unheard.add(partition)
                self.rival(partition)

    def poll(self) -> None:
        if self.lost_unheard:
            self.model.lost([TopicPartition("in", at) for at in self.lost_unheard])
            self.lost_unheard = set()
        leaving = [at for at in self.positions if self.chance(0.1)]
        if leaving:
            if self.model.state is State.OPEN:
                self.commit()
            self.model.leaves([TopicPartition("in", at) for at in leaving])
            for partition in leaving:
                del self.positions[partition]
                self.rival(partition)
        for partition in range(PARTITIONS):
            if partition not in self.positions and (self.calm or self.chance(0.5)):
                self.positions[partition] = self.committed[partition]
        batches = []
        for partition in self.random.sample(sorted(self.positions), len(self.positions)):
            lo = self.positions[partition]
            hi = min(self.length, lo + self.random.randrange(4))
            self.positions[partition] = hi
            batches += [(partition, offset) for offset in range(lo, hi)]
        if self.model.polled(len(batches), self.now_ms):
            self.hand_out(batches)

    def hand_out(self, places: list[tuple[int, int]]) -> None:
        starts: dict[int, int] = {}
        for partition, offset in places:
            starts.setdefault(partition, offset)
        ends = {partition: self.positions[partition] for partition in starts}
        self.positions |= starts
        for partition, offset in places:
            self.lose()
            if partition not in self.positions:
                continue
            if self.model.waits(record(offset, partition)):
                return
            self.positions[partition] = offset + 1
            if not self.handle(partition, offset):
                return
        self.positions |= {at: end for at, end in ends.items() if at in self.positions}

    def handle(self, partition: int, offset: int) -> bool:
        """Whether the pass goes on."""
        place, each = (partition, offset), record(offset, partition)
        letter = self.model.letter(each)
        if letter is None:
            self.calls[place] = self.calls.get(place, 0) + 1
            assert self.model.state is State.OPEN, "a handler runs in a transaction"
            if self.calls[place] <= self.bad.get(place, 0):
                self.open.append((partition, -1, False))  # half of its work, to be aborted
                assert self.model.handler_failed(each, "x") is None
                return False
        self.open.append((partition, offset, letter is not None))
        if not self.model.handled(each, self.now_ms, as_letter=letter is not None):
            return True
        if self.model.step(self.now_ms) is Step.COMMIT:
            self.commit()
        return self.model.goes_on(self.now_ms)

    def commit(self) -> None:
        assert self.model.state is State.OPEN
        refused = bool(self.lost_unheard) or self.chance(0.1)
        told = not refused and not self.chance(0.1)
        if not refused:
            for partition, offset, as_letter in self.open:
                self.output[partition].append(offset)
                if as_letter:
                    self.letters.append((partition, offset))
            self.committed |= self.positions
            self.check()
        if told:
            self.open = []
            self.model.committed(self.now_ms)
        else:  # aborted before, or a commit whose answer is lost
            self.model.failed()
            self.open = []

    def recover(self) -> None:
        self.open = []
        self.positions |= {at: self.committed[at] for at in self.positions}
        if self.chance(0.2):
            self.model.failed()
        else:
            self.model.recovered()

    def check(self) -> None:
        for partition, found in self.output.items():
            assert found == list(range(self.committed[partition])), f"partition {partition}"
        assert len(set(self.letters)) == len(self.letters)
        for place in self.letters:
            assert self.calls[place] > self.retries, "a letter before its time"


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 2))
def test_whatever_happens_each_record_has_its_effect_once(seed: int, retries: int) -> None:
    world = World(Random(seed), retries)
    world.run(60)
    world.check()


# -- the edge -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"group_id": ""}, "group_id"),
        ({"source": ""}, "source"),
        ({"source": ()}, "source"),
        ({"commit_interval_ms": 0}, "commit_interval_ms"),
        ({"commit_interval_ms": 10_000}, "less than transaction_timeout_ms"),
        ({"max_records": 10_001}, "max_records"),
        ({"retries": -1}, "retries"),
        ({"backoff_ms": 20_000}, "backoff_max_ms"),
        ({"transaction_timeout_ms": 10}, "transaction_timeout_ms"),
        ({"session_timeout_ms": 999}, "session_timeout_ms"),
        ({"commit_interval_ms": "100"}, "commit_interval_ms"),
        ({"dead_letter_topic": "in"}, "dead_letter_topic"),
        ({"source": ("a", "b"), "dead_letter_topic": "b"}, "dead_letter_topic"),
        ({"client_id": "\n"}, "client_id"),
    ],
)
def test_settings_that_make_no_sense_are_named(options: dict[str, object], said: str) -> None:
    with pytest.raises(MisuseError, match=said) as refused:
        config(**options)
    assert "\n" not in str(refused.value)


async def test_its_member_outlives_the_longest_pause() -> None:
    """Else its failures of a record would be forgotten with the partition, again and again."""
    longest = config(backoff_ms=600_000, backoff_max_ms=600_000)
    loop = AsyncTransformer("127.0.0.1:1", longest)
    assert loop._consumer.config.max_poll_interval_ms > longest.backoff_max_ms


def test_handlers_of_the_wrong_kind_are_refused() -> None:
    async def waits(record: Record, out: object) -> None: ...

    class Waits:
        async def __call__(self, record: Record, out: object) -> None: ...

    for handle, is_async, said in (
        (None, False, "function"),
        (waits, False, "async_transform"),
        (Waits(), False, "async_transform"),
        (print, True, "use transform"),
    ):
        with pytest.raises(MisuseError, match=said):
            check_handle(handle, is_async=is_async)
    check_handle(print, is_async=False)
    check_handle(Waits(), is_async=True)


def test_each_transformer_has_an_id_of_its_own_that_fits() -> None:
    assert transactional_id("billing").startswith("billing/")
    assert transactional_id("billing") != transactional_id("billing")
    assert len(transactional_id("ü" * 249).encode()) <= 249
