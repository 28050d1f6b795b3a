"""A streaming query in the simulator: its driver and executors are processes that can die.

    driver: offset log ─▶ a run: tasks ─▶ messages ─▶ decision_of ─▶ CommitBatch ─▶ commit log ─▶ …
    executor: BeginBranch at the first row ─▶ rows, each batch until it is acknowledged ─▶ message

Chance does what Spark does: tasks are retried, slow ones beside a twin; a driver dies between any
two steps, or is only considered dead, and the next one executes the batch again, with the same rows
or others. What the sink does is production code: `penstock.spark.decision`, and the coordinator.
`spark_checks` checks what happens to the rows.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.client.transaction.branch_model import BatchOutcome, BatchRun, Branch
from penstock.core.batch import Batch
from penstock.core.replication.contract_leader import ProduceReply
from penstock.core.transactions import contract as tc
from penstock.core.transactions.records import Attempt
from penstock.core.types import (
    TRANSACTIONAL_PRODUCER_BIT,
    ProducerId,
    ReplicaKey,
)
from penstock.errors import PenstockError
from penstock.spark.decision import Decision, TaskResult, check_outcome, decision_of
from penstock.spark.sink_options import OnReplayMismatch
from penstock_sim.process import Process
from penstock_sim.transactional import transactional_batch

if TYPE_CHECKING:
    from penstock_sim.committed_reader import CommittedReader
    from penstock_sim.spark_checks import SparkChecks
    from penstock_sim.world import World

Plan = tuple[tuple[int, ...], ...]
"""For each task, the number of rows of each batch that it sends."""
_NODE: Final = 900
_PRODUCE_ATTEMPTS: Final = 6
_CALL_MS: Final = 600
"""How long a driver or a task retries before it gives up."""
_FAILURES_MAX: Final = 4
_SILENT_MS: Final = 250
"""A task that has not reported for this long gets a twin."""
_WITHOUT_ROWS: Final = object()
logging.getLogger("penstock.spark").addHandler(logging.NullHandler())


@dataclass(slots=True, eq=False)
class Written:
    """What one attempt of a task has sent."""

    task: int
    attempt: int
    rows: int
    payloads: set[bytes]
    branch: Branch | None = None


@dataclass(slots=True, eq=False)
class Execution:
    """One execution of a batch. `messages`: per task, the one that the driver accepts.

    is_aborted: the driver was told that nothing of it is committed. is_over: anything that still
    arrives is too late.
    """

    run: BatchRun
    plan: Plan
    written: list[Written] = field(default_factory=list)
    attempts: list[TaskAttempt] = field(default_factory=list)
    messages: dict[int, object] = field(default_factory=dict)
    failures: int = 0
    decision: Decision | None = None
    is_aborted: bool = False
    is_over: bool = False


@dataclass(slots=True, eq=False)
class Query:
    """Outlives drivers: the checkpoint (offset log, commit log), and the user's settings."""

    application_id: str
    checkpoint: str
    is_repeatable: bool
    on_mismatch: OnReplayMismatch = OnReplayMismatch.ERROR
    offsets: dict[int, Plan] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)
    executions: list[Execution] = field(default_factory=list)

    @property
    def next_batch(self) -> int:
        return max(self.commits, default=-1) + 1

    @property
    def is_busy(self) -> bool:
        """A batch has begun and is not in the commit log."""
        return self.next_batch in self.offsets


class Driver(Process):
    """One driver of a query; each process is another one."""

    def __init__(self, spark: SimSpark, query: Query, number: int) -> None:
        super().__init__(spark.world, f"d{number}", _NODE + number)
        self.spark = spark
        self.query = query
        self.is_gone = False
        self._number = number
        self._execution: Execution | None = None
        self._attempts = 0
        chance = self.world.scheduler.random
        self._pause_ms = chance.choice((1, 10, 60))
        self._steps_left = chance.choice((5, 20, 60, 200, 10_000))

    def start(self) -> None:
        self._trigger()

    def _die(self) -> None:
        super()._die()
        self.is_gone = True
        self.spark.lost(self)

    # ------------------------------------------------------------ a batch

    def _trigger(self) -> None:
        query, batch = self.query, self.query.next_batch
        if batch not in query.offsets:
            if not self.world.chaotic:
                self.is_gone = True
                return
            query.offsets[batch] = self.spark.new_plan()
        elif not query.is_repeatable and self.world.scheduler.chance(0.6):
            query.offsets[batch] = self.spark.new_plan()
        self._later(self.world.scheduler.between(0.2, 4), self._execute, batch)

    def _execute(self, batch: int) -> None:
        query = self.query
        run = f"{self.name}.{batch}"
        execution = Execution(
            BatchRun(query.application_id, query.checkpoint, run, batch), query.offsets[batch]
        )
        self._execution = execution
        query.executions.append(execution)
        self.world.scheduler.note(self.name, "executes", execution.run, execution.plan)
        for task in range(len(execution.plan)):
            self._launch(execution, task)

    def _launch(self, execution: Execution, task: int) -> None:
        """Starts another attempt; a twin, if one is still running."""
        if execution.is_over or task in execution.messages:
            return
        self._attempts += 1
        attempt = TaskAttempt(self, execution, task, self._attempts)
        execution.attempts.append(attempt)
        attempt.start()
        patience_ms = self.world.scheduler.between(0.05, 2) * _SILENT_MS
        self._later(patience_ms, self._launch, execution, task)

    def hear(self, execution: Execution, task: int, message: object | None) -> None:
        """Takes an attempt's message. None: it failed."""
        if execution.is_over or task in execution.messages:
            return
        if message is None:
            execution.failures += 1
            if execution.failures < _FAILURES_MAX:
                self._later(self.world.scheduler.between(1, 20), self._launch, execution, task)
            else:
                execution.decision = decision_of(execution.messages.values())
                self._abort(execution)
            return
        execution.messages[task] = message
        self._interrupt([one for one in execution.attempts if one.task == task])
        if len(execution.messages) == len(execution.plan):
            self._later(self.world.scheduler.between(0.1, 5), self._commit, execution)

    # ------------------------------------------------------------ its end

    def _commit(self, execution: Execution) -> None:
        messages = [execution.messages[task] for task in range(len(execution.plan))]
        execution.decision = decision_of(messages)
        if execution.decision is None:
            self._committed(execution)
        else:
            self._ask_commit(execution, execution.decision, again=self.world.scheduler.chance(0.1))

    def _ask_commit(self, execution: Execution, decision: Decision, *, again: bool) -> None:
        run, wait_ms = decision.run, self.world.scheduler.random.choice((0, 0, 60))
        self._ask(
            lambda number: tc.CommitBatchRequested(
                request_id=number,
                application_id=run.application_id,
                checkpoint=run.checkpoint,
                run=run.run,
                batch=run.batch,
                rows=decision.rows,
                branches=tuple((branch.number, branch.epoch) for branch in decision.branches),
                wait_visible_ms=wait_ms,
            ),
            lambda answer: self._decided(execution, decision, answer, again=again),
            self._now_ms() + _CALL_MS,
        )

    def _decided(
        self,
        execution: Execution,
        decision: Decision,
        answer: tc.BatchCommitted | PenstockError,
        *,
        again: bool,
    ) -> None:
        if isinstance(answer, PenstockError):
            self.spark.checks.refused(execution, answer)
            self._abort(execution)
            return
        self.spark.checks.told(execution, answer)
        outcome = BatchOutcome(answer.already_committed, answer.rows_then, answer.visible)
        try:
            check_outcome(decision, outcome, self.query.on_mismatch)
        except PenstockError:
            # The remedy that the error names.
            self.query.on_mismatch = OnReplayMismatch.SKIP
            self._abort(execution)
            return
        if again:
            self._ask_commit(execution, decision, again=False)
        elif self.world.chaotic and self.world.scheduler.chance(0.06):
            self._abort(execution)  # it raised after the answer: for Spark it has failed
        else:
            self._committed(execution)

    def _committed(self, execution: Execution) -> None:
        self._later(self.world.scheduler.between(0.1, 5), self._write_commit_log, execution)

    def _write_commit_log(self, execution: Execution) -> None:
        batch = execution.run.batch
        if batch in self.query.commits:
            self._die()  # another driver did it: Spark's commit log accepts each batch once
            return
        self.query.commits.add(batch)
        self.spark.checks.finished(execution)
        self._end(execution)
        pause_ms = self.world.scheduler.between(0.2, 2) * self._pause_ms
        self._later(pause_ms, self._trigger)

    def _end(self, execution: Execution) -> None:
        execution.is_over = True
        self._interrupt(execution.attempts)

    def _interrupt(self, attempts: list[TaskAttempt]) -> None:
        """Some of them never get the message, and continue."""
        for attempt in attempts:
            if not attempt.is_over and self.world.scheduler.chance(0.6):
                self.world.net.call(self.node, attempt.node, attempt.interrupt)

    def _abort(self, execution: Execution) -> None:
        """The query has failed: it ends, and is restarted."""
        run, decision = execution.run, execution.decision
        self._end(execution)
        if decision is None:
            self._die()
            return
        self._ask(
            lambda number: tc.AbortBatchRequested(
                request_id=number,
                application_id=run.application_id,
                checkpoint=run.checkpoint,
                run=run.run,
                batch=run.batch,
            ),
            lambda answer: self._aborted(execution, answer),
            self._now_ms() + _CALL_MS,
        )

    def _aborted(self, execution: Execution, answer: tc.BatchAborted | PenstockError) -> None:
        if isinstance(answer, tc.BatchAborted):
            self.spark.checks.aborted(execution, answer)
        self._die()


class TaskAttempt(Process):
    """One attempt of a task, in an executor of its own."""

    def __init__(self, driver: Driver, execution: Execution, task: int, attempt: int) -> None:
        super().__init__(driver.world, f"{driver.name}.{task}.{attempt}", driver.node)
        self.task = task
        self.is_over = False
        """It has sent its message."""
        self._driver = driver
        self._execution = execution
        self._rows = execution.plan[task]
        self._lanes: dict[ReplicaKey, list[Batch]] = {}
        self._left: dict[ReplicaKey, int] = {}
        self._written = Written(task, attempt, sum(self._rows), set())
        self._producer: tuple[ProducerId, int] | None = None
        self._steps_left = self.world.scheduler.random.choice((2, 5, 10, 20, *[10_000] * 6))

    def start(self) -> None:
        """Its executor starts it."""
        if not self._rows:
            self._say(_WITHOUT_ROWS)
            return
        run = self._execution.run
        attempt = Attempt(run.run, run.batch, self.task, self._written.attempt)
        timeout_ms = self._driver.spark.timeout_ms
        self._ask(
            lambda number: tc.BeginBranchRequested(
                request_id=number,
                application_id=run.application_id,
                checkpoint=run.checkpoint,
                attempt=attempt,
                fresh_producer_id=ProducerId(TRANSACTIONAL_PRODUCER_BIT + number),
                timeout_ms=timeout_ms,
                client_id=self.name,
            ),
            self._begun,
            self._now_ms() + _CALL_MS,
        )

    def interrupt(self) -> None:
        """Its result is no longer wanted: it fails, like a task that is killed."""
        if self._producer is not None and not self.is_over:
            self._fail()

    def _say(self, message: object | None) -> None:
        """Sends the message to the driver, if it is still there."""
        self.is_over = True
        driver, life = self._driver, self._driver._life
        said = (driver._run, life, driver.hear, (self._execution, self.task, message))
        self.world.net.call(self.node, driver.node, *said)

    def _begun(self, answer: tc.BranchBegun | PenstockError) -> None:
        if isinstance(answer, PenstockError):
            self._say(None)
            return
        if answer.already_committed:
            self._say(TaskResult(self._execution.run, self._written.rows, None))
            return
        self._producer = (answer.producer_id, answer.producer_epoch)
        self._written.branch = Branch(answer.branch, answer.producer_epoch)
        self.world.transaction_checks.granted(self._producer, self.name)
        self._fill_lanes(self._producer)
        self._execution.written.append(self._written)
        for key in tuple(self._lanes):
            self._produce(key, 1)

    def _fill_lanes(self, producer: tuple[ProducerId, int]) -> None:
        sequences: dict[ReplicaKey, int] = {}
        run = self._execution.run
        for index, rows in enumerate(self._rows):
            key = self.world.scheduler.random.choice(self.world.written_keys)
            text = f"{run.application_id}:{run.batch}:{self.name}:{index}"
            sequence = sequences.get(key, 0)
            batch = transactional_batch(self.world, text, producer, sequence, rows)
            sequences[key] = sequence + rows
            self._lanes.setdefault(key, []).append(batch)
            if key in self.world.keys:  # the others cannot be read in the end
                self._written.payloads.add(batch.payload)
        self._left = {key: len(lane) for key, lane in self._lanes.items()}

    # ------------------------------------------------------------ rows

    def _produce(self, key: ReplicaKey, attempt: int) -> None:
        batch = self._lanes[key][-self._left[key]]
        answered = partial(self._produced, key, attempt)
        self._deliver(key, batch, self._execution.run.application_id, answered)

    def _produced(self, key: ReplicaKey, attempt: int, reply: ProduceReply | None) -> None:
        error = None if reply is None else reply.error
        if reply is None or error is not None:
            if attempt >= _PRODUCE_ATTEMPTS or (error is not None and not error.retriable):
                self._fail()
            else:
                delay_ms = self.world.scheduler.between(5, 50)
                self._later(delay_ms, self._produce, key, attempt + 1)
            return
        self._left[key] -= 1
        if self._left[key]:
            self._produce(key, 1)
        elif not any(self._left.values()):
            branch = self._written.branch
            self._say(TaskResult(self._execution.run, self._written.rows, branch))

    def _fail(self) -> None:
        """Aborts its own branch, and reports the failure."""
        assert self._producer is not None
        (producer_id, epoch), self._producer = self._producer, None
        self._life += 1
        application_id = self._execution.run.application_id
        self._ask(
            lambda number: tc.EndRequested(
                request_id=number,
                transactional_id=application_id,
                producer_id=producer_id,
                producer_epoch=epoch,
                commit=False,
            ),
            lambda _answer: self._say(None),
            self._now_ms() + _CALL_MS,
        )


class SimSpark:
    """The query of a history, its drivers, and their faults."""

    def __init__(self, world: World, checks: SparkChecks) -> None:
        self.world = world
        self.checks = checks
        chance = world.scheduler.random
        self.query = Query("spark/query", "query", is_repeatable=chance.random() < 0.5)
        self.same_rows = chance.random() < 0.5
        """A query that is not repeatable produces as many rows again, but others."""
        self.timeout_ms = chance.choice((250, 600))
        self.drivers: list[Driver] = []
        self._tasks = chance.choice((1, 2, 3))
        self._pace_ms = world.scheduler.between(60, 400)

    @property
    def driver(self) -> Driver:
        """The driver that the cluster manager considers alive."""
        return self.drivers[-1]

    def start(self) -> None:
        """Starts the query's first driver."""
        self._start_driver()
        scheduler = self.world.scheduler
        scheduler.at_pace(scheduler.random, self._pace_ms, self._strike)

    def new_plan(self) -> Plan:
        """Some tasks have no rows, and sometimes none has."""
        chance = self.world.scheduler.random
        return tuple(
            tuple(
                chance.randrange(1, 4) if not self.same_rows else 2
                for _ in range(chance.choice((0, 1, 2, 3)) if not self.same_rows else 1 + task)
            )
            for task in range(self._tasks)
        )

    def lost(self, driver: Driver) -> None:
        """A driver has ended; if it was the current one, another is started."""
        if driver is self.driver:
            delay_ms = self.world.scheduler.random.choice((1, 20, 80, 250))
            self.world.scheduler.after(delay_ms, self._replace, driver)

    def _replace(self, driver: Driver) -> None:
        if driver is self.driver and (self.world.chaotic or self.query.is_busy):
            self._start_driver()

    def _start_driver(self) -> None:
        driver = Driver(self, self.query, len(self.drivers) + 1)
        self.drivers.append(driver)
        driver.start()

    def _strike(self) -> None:
        """A driver dies, or is only considered dead and continues beside the next one."""
        scheduler = self.world.scheduler
        if not self.world.chaotic:
            return
        scheduler.at_pace(scheduler.random, self._pace_ms, self._strike)
        driver = self.driver
        if driver.is_gone:
            return
        if scheduler.chance(0.5):
            driver._die()
        else:
            driver.freeze(scheduler.between(1, 300))
            self._start_driver()

    def check_end(self, readers: list[CommittedReader]) -> None:
        """Checks against everything that was read."""
        seen = {payload for reader in readers for payload in reader.seen}
        missed = {payload for reader in readers for payload in reader.missed}
        self.checks.check_end(self.query, seen, missed)

    def unsettled(self) -> str:
        """Why the query is not finished; "" = every batch begun is in its commit log."""
        if self.query.is_busy:
            return f"batch {self.query.next_batch} of {self.query.application_id} is under way"
        return ""
