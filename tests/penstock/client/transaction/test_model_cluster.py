"""Transactions against a model cluster: whatever is lost, late or doubled, all or nothing (I11).

The coordinator and the partitions know the protocol's rules only. Requests and answers get lost,
come twice or after the next transaction has begun; batches are refused or time out; the
coordinator aborts by timeout; another producer takes the id. At the end, what the user was told is
compared with what a read_committed reader sees. No time passes but the model's.
"""

import random
from collections import defaultdict
from dataclasses import dataclass, replace

import pytest
from support.transaction_model import PRODUCER, Branch, Partition, refused

from penstock.client.producer.lane import Entry, Lane
from penstock.client.transaction.contract import (
    Abort,
    BatchLost,
    Begin,
    Commit,
    End,
    EndAnswered,
    EndFailed,
    Event,
    Flushed,
    Identified,
    Ready,
    TransactionError,
)
from penstock.client.transaction.machine import State, Transactions
from penstock.core.types import ProducerIdentity
from penstock.errors import ErrorCode, PenstockError, UnreachableError

PARTITIONS = 2
LOST = UnreachableError("lost")
SEEDS = 1_000
HAPPENINGS, WEIGHTS = zip(
    *{
        "arrive": 300,
        "answer": 300,
        "user": 200,
        "tick": 100,
        "hear": 50,
        "copy": 10,
        "late end": 10,
        "timeout": 5,
        "take over": 0.5,
    }.items(),
    strict=True,
)


@dataclass(frozen=True)
class Produce:
    partition: int
    entry: Entry[str]
    epoch: int
    sequence: int


class World:
    """One producer, its shell played by `obey`, and the cluster."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now_ms = 0
        self.branch = Branch()
        self.partitions: list[Partition[str]] = [Partition(self.branch) for _ in range(PARTITIONS)]
        self.machine = Transactions("id", 5, 20)
        self.lanes: list[Lane[str]] = [
            Lane(max_in_flight=5, idempotent=True, transactional=True, backoff_ms=5,
                 backoff_max_ms=20)
            for _ in range(PARTITIONS)
        ]  # fmt: skip
        self.waiting: list[list[str]] = [[] for _ in range(PARTITIONS)]
        self.instances = 0
        self.network: list[Produce] = []
        self.answers: list[tuple[Produce, PenstockError | None]] = []
        self.end: End | None = None
        self.late_ends: list[End] = []
        self.call: Event | None = None
        self.flushing = False
        self.number = 0
        self.sent: dict[int, list[str]] = defaultdict(list)
        self.told: dict[int, bool | None] = {}
        """Per transaction: committed, not committed, or None = unknown."""

    # -- the shell ---------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        self.obey(self.machine.handle(event, self.now_ms))

    def obey(self, ready: Ready) -> None:
        if ready.discard is not None:
            for index, lane in enumerate(self.lanes):
                lane.discard()
                self.waiting[index] = []
        if ready.adopt is not None:
            for lane in self.lanes:
                assert lane.adopt(ready.adopt) == []
        if ready.identify:
            self.instances += 1
            self.handle(Identified(ProducerIdentity(PRODUCER, self.branch.init(self.instances))))
            self.handle(Begin(self.now_ms + 1_000))
        if ready.flush:
            self.flushing = True
        elif ready.end is not None:
            self.end = ready.end
        elif self.call is not None and self.machine is not None:
            self.finish(ready.error)

    def finish(self, error: PenstockError | None) -> None:
        """The user's call is over, unless batches are still under way for it."""
        if self.flushing or self.end is not None:
            return
        call, self.call = self.call, None
        if isinstance(call, Commit):
            if error is None:
                self.told[self.number] = True
            else:
                assert isinstance(error, TransactionError)
                self.told[self.number] = None if error.unknown_outcome else False
        elif isinstance(call, Abort):
            self.told[self.number] = False

    def user(self) -> None:
        """Something the machine allows."""
        deadline_ms = self.now_ms + self.rng.choice([30, 200, 1_000])
        match self.machine.state:
            case State.READY:
                self.number += 1
                self.handle(Begin(deadline_ms))
            case State.OPEN if self.rng.random() < 0.7:
                where = self.rng.randrange(PARTITIONS)
                value = f"{self.number}.{len(self.sent[self.number])}"
                self.sent[self.number].append(value)
                self.waiting[where].append(value)
            case State.OPEN if self.rng.random() < 0.8:
                self.begin_call(Commit(deadline_ms))
            case State.OPEN | State.FAILED:
                self.begin_call(Abort(deadline_ms))
            case State.ENDING:
                self.ask_on(deadline_ms)
            case _:
                pass

    def begin_call(self, event: Commit | Abort) -> None:
        self.call = event
        self.handle(event)

    def ask_on(self, deadline_ms: int) -> None:
        unknown = self.told.get(self.number, False) is None
        self.begin_call(Commit(deadline_ms) if unknown else Abort(deadline_ms))

    def tick(self) -> None:
        self.now_ms += self.rng.choice([0, 1, 2, 5])
        for index, lane in enumerate(self.lanes):
            for entry in lane.expire(self.now_ms):
                self.handle(BatchLost(refused(ErrorCode.DELIVERY_TIMED_OUT)))
                assert entry.batch not in self.waiting[index]
            while (due := self.next(index, lane)) is not None:
                assert due.identity is not None
                self.network.append(Produce(index, due, due.identity.epoch, due.sequence))
        self.tick_end()

    def next(self, index: int, lane: Lane[str]) -> Entry[str] | None:
        again = lane.resend(self.now_ms)
        if again is not None or not self.waiting[index] or not lane.can_take(self.now_ms):
            return again
        patience_ms = self.rng.choice([30, 1_000, 1_000, 1_000])
        return lane.take(self.waiting[index].pop(0), 1, self.now_ms + patience_ms)

    def tick_end(self) -> None:
        if self.flushing:
            assert isinstance(self.call, Commit)
            left = sum(map(len, self.waiting)) + sum(len(lane.window) for lane in self.lanes)
            if not left or self.now_ms >= self.call.deadline_ms:
                self.flushing = False
                self.handle(Flushed(left))
        end = self.end
        if end is None or self.now_ms < end.not_before_ms:
            return
        self.end = None
        fate = self.rng.random()
        if fate < 0.2:
            self.handle(EndFailed(LOST))
            self.late_ends.append(end)
        else:
            answer = self.decide(end)
            lost = fate < 0.4
            self.handle(EndFailed(LOST) if lost else answer)

    def decide(self, end: End) -> EndAnswered | EndFailed:
        try:
            return self.branch.end(end.identity.epoch, commit=end.commit)
        except PenstockError as error:
            return EndFailed(error)

    # -- the network, and misfortune ------------------------------------------------------------

    def step(self) -> None:
        rng = self.rng
        happening = rng.choices(HAPPENINGS, WEIGHTS)[0]
        if happening == "arrive" and self.network:
            self.arrive(self.network.pop(rng.randrange(len(self.network))))
        elif happening == "answer" and self.answers:
            self.answer(*self.answers.pop(rng.randrange(len(self.answers))))
        elif happening == "copy" and self.network:
            self.network.append(rng.choice(self.network))
        elif happening == "late end" and self.late_ends:
            self.decide(self.late_ends.pop())
        elif happening == "timeout" and self.branch.is_open:
            self.branch.decide(commit=False, reason="timeout")
        elif happening == "take over":
            self.branch.init(-1)
        elif happening == "hear":
            rng.choice(self.partitions).hear()
        elif happening == "user" and self.call is None:
            self.user()
        else:
            self.tick()

    def arrive(self, produce: Produce) -> None:
        if self.rng.random() < 0.1:  # lost, but for a copy that may come much later
            self.answers.append((produce, LOST))
            if self.rng.random() < 0.5:
                self.network.append(replace(produce))
            return
        try:
            value = produce.entry.batch
            self.partitions[produce.partition].append(produce.epoch, produce.sequence, [value])
        except PenstockError as error:
            self.answers.append((produce, error))
        else:
            self.answers.append((produce, LOST if self.rng.random() < 0.1 else None))

    def answer(self, produce: Produce, error: PenstockError | None) -> None:
        lane, entry = self.lanes[produce.partition], produce.entry
        if entry not in lane.window or not entry.outstanding:
            return
        if error is None:
            lane.succeeded(entry)
        elif lane.failed(entry, error, self.now_ms):
            self.handle(BatchLost(error))

    # -- what a read_committed reader sees ---------------------------------------------------------

    def check(self) -> None:
        visible: dict[int, list[str]] = defaultdict(list)
        for partition in self.partitions:
            for value in partition.visible():
                visible[int(value.partition(".")[0])].append(value)
        for number, told in self.told.items():
            seen, sent = sorted(visible[number]), sorted(self.sent[number])
            if told is None:
                assert seen in ([], sent), f"transaction {number} is torn: {seen} of {sent}"
            else:
                assert seen == (sent if told else []), f"transaction {number}: told {told}"
        torn = [number for number in visible if number not in self.told]
        assert not torn, f"nobody committed {torn}"


def run(seed: int) -> World:
    world = World(random.Random(seed))
    for _ in range(400):
        world.step()
    world.rng = random.Random(-seed)
    for _ in range(3_000):
        if world.call is None and world.machine.state in (State.READY, State.FENCED):
            break
        for partition in world.partitions:
            partition.hear()
        world.step()
    while world.network:  # the last late copies
        world.arrive(world.network.pop())
    while world.late_ends:
        world.decide(world.late_ends.pop())
    return world


@pytest.mark.parametrize("first", range(0, SEEDS, 250))
def test_what_the_user_was_told_is_what_readers_see(first: int) -> None:
    told: dict[bool | None, int] = defaultdict(int)
    fenced = 0
    for seed in range(first, first + 250):
        world = run(seed)
        try:
            world.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        fenced += world.machine.state is State.FENCED
        for answer in world.told.values():
            told[answer] += 1
    assert told[True] > 500, told
    assert told[False] > 200, told
    assert fenced > 10, "other producers take the id"
