"""A coordinator of transactions in a world that goes wrong, and what must hold nevertheless.

    producers, drivers ──calls, some twice, some late──▶ machine ──Readys──▶ log that commits late
    participants (partitions, groups) ◀──Ends, some lost──┘      └─ crash: what was not committed
       └─ store data after a join, markers after an End              is gone, another machine loads

Judged on what is *committed*, Ready by Ready: the state is what the log adds up to (I16); a
(producer id, epoch) has one outcome for ever, and whoever was told one was told this one (I11); no
participant stores data of an epoch before it has the marker of the one before (I12); nobody drops
out of `finishing` before it has heard; an epoch is handed to one producer only (I10); a batch is
committed by one run, whole, with its ledger, and none of its branches stays open. `settle` ends the
trouble: then every participant of every decided transaction has heard.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from penstock.core.defect import raise_defect
from penstock.core.transactions import TransactionConfig, TransactionCoordinator
from penstock.core.transactions import contract as c
from penstock.core.transactions.records import (
    Attempt,
    BranchKey,
    BranchRecord,
    EndReason,
    GroupParticipant,
    IdKey,
    IdRecord,
    LedgerKey,
    LedgerRecord,
    Participant,
    PartitionParticipant,
    decode_key,
    decode_value,
)
from penstock.core.types import ProducerId, TopicId
from penstock.errors import ErrorCode

TIME_AT_ZERO_MS = 1_700_000_000_000
CONFIG = TransactionConfig(
    default_timeout_ms=3_000,
    park_ms=1_000,
    sweep_interval_ms=2_000,
    id_expiration_ms=60_000,
    branches_max=8,
)
Transaction = tuple[ProducerId, int]


def durable(machine: TransactionCoordinator) -> Any:
    """Everything that must survive a failover, comparable."""
    holders = {
        name: (holder.record, {n: branch.record for n, branch in holder.branches.items()})
        for name, holder in machine.holders.items()
    }
    return holders, dict(machine.ledgers)


@dataclass
class Store:
    """What a participant has stored: epochs with data and no marker, and the markers."""

    data: dict[ProducerId, set[int]] = field(default_factory=lambda: defaultdict(set))
    markers: dict[Transaction, bool] = field(default_factory=dict)

    def put_data(self, transaction: Transaction) -> None:
        producer_id, epoch = transaction
        if any(t[0] == producer_id and t[1] >= epoch for t in self.markers):
            return  # the guard was dropped by that End
        older = {e for e in self.data[producer_id] if e < epoch}
        assert not older, f"{transaction} joins before the marker of {older} (I12)"
        self.data[producer_id].add(epoch)

    def put_marker(self, transaction: Transaction, *, commit: bool) -> None:
        known = self.markers.setdefault(transaction, commit)
        assert known is commit, f"markers of {transaction} differ (I12)"
        self.data[transaction[0]].discard(transaction[1])


@dataclass
class Producer:
    """A producer object: one instance of a transactional id, or the attempt of a task."""

    name: str
    instance: str
    is_task: bool = False
    who: Transaction | None = None


@dataclass
class Driver:
    """Executes batches of an application, one run after another."""

    app: str
    run: str
    batch: int
    begun: dict[int, tuple[int, Producer]] = field(default_factory=dict)  # task: branch, attempt


class TransactionWorld:
    """See the module. `early`: a planted bug, answers leave before their records are committed."""

    def __init__(self, rng: random.Random, *, early: bool = False) -> None:
        self.rng = rng
        self.early = early
        self.now_ms = 0
        self.log: list[tuple[bytes, bytes | None]] = []
        self.live: dict[bytes, bytes | None] = {}  # the log as compaction leaves it
        self.ends: list[int] = []  # of Readys: each is in a log whole or not at all
        self.committed = 0
        self.waiting: deque[tuple[int, c.Output]] = deque()
        self.numbers = count(1)
        self.answers: dict[int, Callable[[Any], None]] = {}
        self.past: list[Callable[[], None]] = []
        self.stores: dict[Participant, Store] = defaultdict(Store)
        self.under_way: list[c.End] = []
        self.producers: list[Producer] = []
        self.drivers: dict[str, Driver] = {}
        # What the committed log says.
        self.ids: dict[str, IdRecord] = {}
        self.branches: dict[tuple[str, int], BranchRecord] = {}
        self.ledgers: dict[str, LedgerRecord] = {}
        self.outcomes: dict[Transaction, bool] = {}
        self.joined: dict[Transaction, set[Participant]] = defaultdict(set)
        self.owners: dict[Transaction, str] = {}
        self.committed_by: dict[tuple[str, int], str] = {}
        self.aborted_runs: set[str] = set()
        self.machine = TransactionCoordinator(CONFIG, TIME_AT_ZERO_MS)
        self.obey(self.machine.start(0))

    # ------------------------------------------------------------ the log

    def feed(self, event: c.Event) -> None:
        ready = self.machine.handle(event, self.now_ms)
        raise_defect(ready.stopped)
        self.obey(ready)

    def obey(self, ready: c.Ready) -> None:
        self.log += ready.records
        self.live.update(ready.records)
        if ready.records:
            self.ends.append(len(self.log))
            assert durable(self.machine) == durable(self.rebuilt()), "I16"
        end = self.committed if self.early else len(self.log)
        self.waiting += [(end, output) for output in ready.outputs]
        self.release()

    def rebuilt(self) -> TransactionCoordinator:
        machine = TransactionCoordinator(CONFIG, TIME_AT_ZERO_MS)
        for key, value in self.live.items():
            machine.load(key, value)
        machine.start(self.now_ms)
        return machine

    def commit_log(self, end: int) -> None:
        """Ready by Ready: a crash could come between any two."""
        while self.ends and self.ends[0] <= end:
            upto = self.ends.pop(0)
            for key, value in self.log[self.committed : upto]:
                self.judge(key, value)
            self.committed = upto
            self.judge_batches()
        self.release()

    def release(self) -> None:
        while self.waiting and self.waiting[0][0] <= self.committed:
            output = self.waiting.popleft()[1]
            if isinstance(output, c.SendEnds):
                self.under_way += output.entries
            else:
                self.answers.pop(output.request_id)(output.answer)

    def fail_over(self) -> None:
        """Another broker leads: what was not committed is gone, and every call with it."""
        del self.log[self.committed :]
        self.live = dict(self.log)
        self.ends.clear()
        self.waiting.clear()
        self.answers.clear()
        self.machine = TransactionCoordinator(
            CONFIG, TIME_AT_ZERO_MS + self.rng.choice([0, 0, -5_000, 700])
        )
        for key, value in self.log:
            self.machine.load(key, value)
        self.obey(self.machine.start(self.now_ms))

    # ------------------------------------------------------------ judging what is committed

    def judge(self, encoded: bytes, value: bytes | None) -> None:
        key = decode_key(encoded)
        decoded = None if key is None or value is None else decode_value(key, value)
        match key, decoded:
            case IdKey(name), IdRecord():
                self.ids[name] = decoded
            case IdKey(name), None:
                self.ids.pop(name, None)
            case LedgerKey(name), LedgerRecord():
                self.ledgers[name] = decoded
            case BranchKey(name, number), None:
                gone = self.branches.pop((name, number))
                assert not gone.is_open, f"{key} expired while it was open"
                self.heard(gone, BranchRecord(producer_id=gone.producer_id))
            case BranchKey(name, number), BranchRecord():
                before = self.branches.get((name, number))
                self.branches[name, number] = decoded
                self.judge_branch(before, decoded)

    def judge_branch(self, before: BranchRecord | None, now: BranchRecord) -> None:
        present = (now.producer_id, now.epoch)
        assert present not in self.outcomes, f"{present} is decided, and goes on"
        self.joined[present] |= now.joined
        decided = [(e.producer_id, e.epoch, e.commit) for e in now.finishing.values()]
        if now.last is not None:
            decided.append((now.last.producer_id, now.last.epoch, now.last.commit))
        for producer_id, epoch, commit in decided:
            known = self.outcomes.setdefault((producer_id, epoch), commit)
            assert known is commit, f"{producer_id}, {epoch} is decided twice (I11)"
        if before is None:
            return
        self.heard(before, now)
        if before.is_open and (before.producer_id, before.epoch) in self.outcomes:
            lost = before.joined - now.finishing.keys()
            assert not lost, f"{lost} will never be told of the end of epoch {before.epoch}"

    def heard(self, before: BranchRecord, now: BranchRecord) -> None:
        """Nobody is dropped from `finishing` before it has stored the end."""
        for participant, ending in before.finishing.items():
            if now.finishing.get(participant) != ending:
                markers = self.stores[participant].markers
                done = markers.get((ending.producer_id, ending.epoch))
                assert done is ending.commit, f"{participant} has not heard of {ending}"

    def judge_batches(self) -> None:
        for (app, number), record in self.branches.items():
            attempt, last, ledger = record.attempt, record.last, self.ledgers.get(app)
            if number == 0 or attempt is None:
                continue
            batch = -1 if ledger is None else ledger.batch
            if record.is_open:
                assert attempt.batch > batch, f"{attempt} is open after its batch was committed"
            elif last is not None and last.commit:
                assert batch >= attempt.batch, f"{attempt} committed without its ledger (I11)"
                run = self.committed_by.setdefault((app, attempt.batch), attempt.run)
                assert run == attempt.run, f"batch {attempt.batch} committed by two runs"
                assert run not in self.aborted_runs, f"run {run} was told that it is aborted"

    # ------------------------------------------------------------ calls

    def ask(self, make: Callable[[int], c.Request], answered: Callable[[Any], None]) -> None:
        """Sent now, and perhaps again at any later time."""

        def send() -> None:
            request_id = next(self.numbers)
            self.answers[request_id] = answered
            self.feed(make(request_id))

        if self.rng.random() < 0.3:
            self.past.append(send)
        send()

    def owns(self, who: Transaction, instance: str) -> None:
        owner = self.owners.setdefault(who, instance)
        assert owner == instance, f"{who} was given to {owner} and to {instance} (I10)"

    def init(self, producer: Producer) -> None:
        def answered(answer: Any) -> None:
            if isinstance(answer, c.ProducerInitialized):
                who = (answer.producer_id, answer.producer_epoch)
                self.owns(who, producer.instance)
                if producer.who is None:
                    producer.who = who

        self.ask(
            lambda request_id: c.InitRequested(
                request_id=request_id,
                transactional_id=producer.name,
                instance_id=producer.instance,
                fresh_producer_id=ProducerId((1 << 62) + next(self.numbers)),
            ),
            answered,
        )

    def join(self, producer: Producer, participant: Participant) -> None:
        who = producer.who
        assert who is not None

        def answered(answer: Any) -> None:
            if isinstance(answer, c.Joined):
                assert participant in self.joined[who], f"{participant} joined off the record"
                self.stores[participant].put_data(who)

        self.ask(
            lambda request_id: c.JoinRequested(
                request_id=request_id,
                transactional_id=producer.name,
                producer_id=who[0],
                producer_epoch=who[1],
                participant=participant,
            ),
            answered,
        )

    def end(self, producer: Producer, *, commit: bool, wait_ms: int = 0) -> None:
        who = producer.who
        assert who is not None

        def answered(answer: Any) -> None:
            self.check_told(producer, who, answer, commit=commit)
            if isinstance(answer, c.Ended) and producer.who == who:
                following = (answer.producer_id, answer.producer_epoch)
                producer.who = following if answer.producer_epoch >= 0 else None

        self.ask(
            lambda request_id: c.EndRequested(
                request_id=request_id,
                transactional_id=producer.name,
                producer_id=who[0],
                producer_epoch=who[1],
                commit=commit,
                wait_visible_ms=wait_ms,
            ),
            answered,
        )

    def check_told(
        self, producer: Producer, who: Transaction, answer: Any, *, commit: bool
    ) -> None:
        if isinstance(answer, c.Ended):
            told = commit if answer.error is None else False
            assert self.outcomes.get(who) is told, f"{who} was told {told} (I11)"
            following = (answer.producer_id, answer.producer_epoch)
            assert following != who, f"{who} goes on after its end"
            if answer.producer_epoch >= 0:
                self.owns(following, producer.instance)
            if answer.visible:
                for participant in self.joined[who]:
                    store = self.stores[participant]
                    assert who in store.markers, f"{participant} has not stored the marker of {who}"
        elif producer.is_task:
            return  # by itself it can only abort
        elif answer.code is ErrorCode.INVALID_TRANSACTION_STATE and who in self.outcomes:
            assert self.outcomes[who] is not commit, f"{who} was told that it is not {commit}"
        elif answer.code is ErrorCode.PRODUCER_FENCED:
            owner, branch = self.ids.get(producer.name), self.branches.get((producer.name, 0))
            last = None if branch is None else branch.last
            if owner is None or last is None or owner.instance_id != producer.instance:
                return
            assert (last.producer_id, last.epoch) != who, f"nobody took {producer.name} (stuck)"

    # ------------------------------------------------------------ batches

    def begin(self, driver: Driver, task: int, attempt: int) -> None:
        run, batch = driver.run, driver.batch
        producer = Producer(driver.app, f"{run}/{task}/{attempt}", is_task=True)

        def answered(answer: Any) -> None:
            if not isinstance(answer, c.BranchBegun):
                return
            if answer.already_committed:
                self.check_in(driver.app, batch)
            elif producer.who is None:
                producer.who = (answer.producer_id, answer.producer_epoch)
                self.owns(producer.who, producer.instance)
                if driver.run == run:
                    driver.begun[task] = (answer.branch, producer)
                self.producers.append(producer)

        self.ask(
            lambda request_id: c.BeginBranchRequested(
                request_id=request_id,
                application_id=driver.app,
                checkpoint="cp",
                attempt=Attempt(run, batch, task, attempt),
                fresh_producer_id=ProducerId((1 << 62) + next(self.numbers)),
                timeout_ms=self.rng.choice([500, 5_000]),
            ),
            answered,
        )

    def check_in(self, app: str, batch: int) -> None:
        ledger = self.ledgers.get(app)
        assert ledger is not None, f"{app} has no ledger, and batch {batch} is said to be in it"
        assert ledger.batch >= batch, f"batch {batch} of {app} is said to be committed"

    def commit_batch(self, driver: Driver) -> None:
        run, batch = driver.run, driver.batch
        named = [(branch, p.who) for branch, p in driver.begun.values() if p.who is not None]

        def answered(answer: Any) -> None:
            if isinstance(answer, c.BatchCommitted) and (named or answer.already_committed):
                self.check_in(driver.app, batch)
                if not answer.already_committed:
                    bad = [who for _, who in named if self.outcomes.get(who) is not True]
                    assert not bad, f"{bad} were told to be committed"
                if driver.run == run:
                    self.next_run(driver, batch + 1)

        self.ask(
            lambda request_id: c.CommitBatchRequested(
                request_id=request_id,
                application_id=driver.app,
                checkpoint="cp",
                run=run,
                batch=batch,
                rows=len(named),
                branches=tuple((branch, who[1]) for branch, who in named),
                wait_visible_ms=self.rng.choice([0, 0, 300]),
            ),
            answered,
        )

    def abort_batch(self, driver: Driver) -> None:
        run, batch = driver.run, driver.batch

        def answered(answer: Any) -> None:
            if isinstance(answer, c.BatchAborted) and not answer.already_committed:
                told = self.committed_by.get((driver.app, batch)) != run
                assert told, f"run {run} was told that batch {batch} is aborted"
                if (self.ledgers.get(driver.app) or LedgerRecord()).run != run:
                    self.aborted_runs.add(run)

        self.ask(
            lambda request_id: c.AbortBatchRequested(
                request_id=request_id,
                application_id=driver.app,
                checkpoint="cp",
                run=run,
                batch=batch,
            ),
            answered,
        )
        self.next_run(driver, batch)

    def next_run(self, driver: Driver, batch: int) -> None:
        driver.run, driver.batch, driver.begun = f"run {next(self.numbers)}", batch, {}

    # ------------------------------------------------------------ trouble

    def run(self, steps: int) -> None:
        """`steps` things happen."""
        weighted = (
            [self._join] * 8
            + [self._commit_log] * 8
            + [self._deliver] * 6
            + [self._end] * 4
            + [self._batch] * 6
            + [self._pass_time] * 3
            + [self._start, self._lose, self._abort, self._again, self._again, self._image]
        )
        for _ in range(steps):
            self.rng.choice([*weighted, self.fail_over] if self.rng.random() < 0.2 else weighted)()

    def _some(self) -> Producer | None:
        found = [producer for producer in self.producers[-12:] if producer.who is not None]
        return self.rng.choice(found) if found else None

    def _start(self) -> None:
        name = self.rng.choice(["a", "b", "app 1"])
        producer = Producer(name, f"instance {next(self.numbers)}")
        self.producers.append(producer)
        self.init(producer)

    def _participant(self) -> Participant:
        if self.rng.random() < 0.2:
            return GroupParticipant("g")
        return PartitionParticipant(TopicId(self.rng.choice("tu")), self.rng.randrange(2))

    def _join(self) -> None:
        producer = self._some()
        if producer is not None:
            self.join(producer, self._participant())

    def _end(self) -> None:
        producer = self._some()
        if producer is not None:
            wait_ms = self.rng.choice([0, 0, 200])
            self.end(producer, commit=self.rng.random() < 0.6, wait_ms=wait_ms)

    def _batch(self) -> None:
        app = self.rng.choice(["app 1", "app 2"])
        driver = self.drivers.setdefault(app, Driver(app, f"run {next(self.numbers)}", 0))
        roll = self.rng.random()
        if roll < 0.6:
            self.begin(driver, self.rng.randrange(3), self.rng.randrange(3))
        elif roll < 0.85:
            self.commit_batch(driver)
        elif roll < 0.93:
            self.abort_batch(driver)
        else:  # the driver dies, and another executes the batch, or one before it again
            self.next_run(driver, max(0, driver.batch - self.rng.randrange(2)))

    def _abort(self) -> None:
        name = self.rng.choice(["a", "b", "app 1", "app 2"])
        reason = self.rng.choice([EndReason.OPERATOR, EndReason.MEMBER_GONE])
        self.ask(
            lambda request_id: c.AbortRequested(
                request_id=request_id, transactional_id=name, reason=reason
            ),
            lambda answer: None,
        )

    def _again(self) -> None:
        """A copy of an older call arrives."""
        if self.past:
            self.past.pop(self.rng.randrange(len(self.past)))()

    def _deliver(self) -> None:
        if self.under_way:
            self.deliver(self.under_way.pop(self.rng.randrange(len(self.under_way))))

    def deliver(self, end: c.End) -> None:
        """The participant stores it; its answer may get lost."""
        who = (end.producer_id, end.producer_epoch)
        assert self.outcomes.get(who) is end.commit, f"{end} was never decided (I11)"
        self.stores[end.participant].put_marker(who, commit=end.commit)
        if self.rng.random() < 0.8:
            self.feed(c.FinishedHeard(end.participant, *who))

    def _lose(self) -> None:
        self.under_way.clear()

    def _image(self) -> None:
        self.feed(c.ImageChanged(frozenset({TopicId("t"), TopicId("u")})))

    def _commit_log(self) -> None:
        if self.ends:
            self.commit_log(self.rng.choice(self.ends))

    def _pass_time(self) -> None:
        self.now_ms += self.rng.choice([20, 100, 400, 1_500])
        self.tick()

    def tick(self) -> None:
        while self.machine.next_wake_ms <= self.now_ms:
            self.feed(c.Tick())

    # ------------------------------------------------------------ the end of trouble

    def settle(self) -> None:
        """Everything commits and is delivered: then nothing is open, and everybody has heard."""
        for _ in range(100):
            self.now_ms += 100
            self.tick()
            self.commit_log(len(self.log))
            under_way, self.under_way = self.under_way, []
            for end in under_way:
                self.deliver(end)
        for key, record in self.branches.items():
            assert not record.is_open, f"{key} is open after its timeout (I14)"
            assert not record.finishing, f"{key} is not finished: {record.finishing} (I14)"
        for who, commit in self.outcomes.items():
            for participant in self.joined[who]:
                heard = self.stores[participant].markers.get(who)
                assert heard is commit, f"{participant} never heard of {who}"
        assert not self.answers, "everybody is answered"
