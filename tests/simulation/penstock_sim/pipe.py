"""Pipes: members of a group that read committed records, write f(record) and commit atomically.

    AsyncTransformer ─▶ SimConsumer ─▶ records ─▶ the program's f(record) ─▶ Output.send
          └ commits, aborts, goes back ─────────▶ Output ─▶ SimProducer, the group's offsets

The loop and its consumer ship (`client/transformer`); its output stands for `TransformOutput` on a
producer as in `producing`, in the same process, which is killed and frozen, and whose transactional
id ends with its membership. `pipe_checks` checks the output (I15).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from penstock.client.consumer.consumer import AsyncConsumer
from penstock.client.consumer.transaction_offsets import Scope
from penstock.client.group.commit_queue import Offsets
from penstock.client.model import ConsumedBatch, Record
from penstock.client.transaction.machine import State
from penstock.client.transformer.config import TransformConfig
from penstock.client.transformer.output import TransformOutput
from penstock.client.transformer.transformer import AsyncTransformer
from penstock.core import isolation
from penstock.core.batch import Batch
from penstock.core.groups import contract as gc
from penstock.core.types import Offset, ProducerIdentity, ReplicaKey
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock_sim.consumer import SimConsumer
from penstock_sim.fetcher import BATCHES, SimFetcher
from penstock_sim.groups import SimGroups
from penstock_sim.ledger import hops_of
from penstock_sim.lulls import Lulls
from penstock_sim.members import MemberPlan, SimMember
from penstock_sim.node_loop import pause
from penstock_sim.producing import Done, SimProducer, Who, Written
from penstock_sim.reading import AGAIN_MS, AT_ONCE, Reader, partition_of
from penstock_sim.reads import Input

if TYPE_CHECKING:
    from penstock_broker.replication.replica import Replica
    from penstock_sim.broker import SimBroker
    from penstock_sim.pipe_checks import PipeChecks
    from penstock_sim.world import World

_ADMIN_PAUSE_MS: Final = 100
_HASTY_RESETS: Final = 6
_COMMITS_EVERY_MS: Final = (20, 60, 200)
"""Of a node's clock."""


def priced(group_id: str, source: ReplicaKey, offset: int, value: bytes) -> bytes:
    """f(record), as it is found after the name of the transaction that wrote it."""
    return f"{group_id}|{source.partition}|{offset}|".encode() + value


class PipeProducer(SimProducer):
    """The producer in the process of a member: killed and frozen with it."""

    def __init__(self, member: PipeMember) -> None:
        self._member = member
        name = f"{member.name}-{member.life}"
        timeout_ms = member.world.scheduler.random.choice((150, 300))
        super().__init__(member.world, name, member.node, member.transactional_id, timeout_ms)

    def stop(self) -> None:
        """Stops with the process."""
        self._life += 1

    def _later(self, delay_ms: float, callback: Callable[..., None], *args: object) -> None:
        self._member.later(delay_ms, self._if_alive, self._life, callback, args)

    def _run(self, life: int, callback: Callable[..., None], args: tuple[object, ...]) -> None:
        if life == self._life:
            self._member.arrives(self._if_alive, life, callback, args)

    def _if_alive(self, life: int, callback: Callable[..., None], args: tuple[object, ...]) -> None:
        if life == self._life:
            callback(*args)


@dataclass(eq=False, slots=True)
class SimOut:
    """As `AsyncOut`: where to send in one transaction.

    While there are faults, each `send` is a batch. Later, records are joined to one batch while
    others have to wait, as in the product: hundreds do not get through within the transaction's
    timeout.
    """

    producer: PipeProducer
    written: Written
    failure: ClusterError | None = None
    _waiting: dict[ReplicaKey, list[tuple[bytes, bytes]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def send(self, key: ReplicaKey, records: list[tuple[bytes, bytes]]) -> None:
        """Unless the transaction has failed meanwhile."""
        self._waiting[key] += records
        if self.producer.world.chaotic or not self.producer.is_held_up(key):
            self.flush()

    def flush(self) -> None:
        """Sends what waits."""
        waiting, self._waiting = self._waiting, defaultdict(list)
        refusal = self.producer.machine.refusal
        if waiting and refusal is not None:
            assert isinstance(refusal, ClusterError)
            self.failure = refusal
            return
        for key, records in waiting.items():
            self.producer.send(key, records)


class Output(TransformOutput):
    """Of one process. Its producer's machine decides as in the product."""

    def __init__(self, process: PipeMember, *parts: Any) -> None:
        super().__init__(*parts)
        self._process = process
        self._made = PipeProducer(process)
        self._has_begun = False
        self._to: SimOut | None = None

    @property
    def failure(self) -> ClusterError | None:
        return None if self._to is None else self._to.failure

    async def begin(self) -> Any:
        if not self._has_begun or self._to is None:
            self.producer = self._made  # type: ignore[assignment]  # only looked at
            if self._made.machine.state is not State.OPEN:
                try:
                    await self._ended(self._made.begin)
                except PenstockError:
                    self._drop()
                    raise
            written = self._made.written
            assert written is not None, "it has begun"
            self._to = SimOut(self._made, written)
            self._has_begun = True
        return self._to

    async def commit(self, consumer: AsyncConsumer) -> None:
        out: SimOut = await self.begin()
        out.flush()
        world = self._process.world
        pipes = world.groups
        assert isinstance(pipes, PipeGroups)
        offsets = await consumer.offsets_in_hand(world.cluster_id, None)
        pipes.lulls.storing(self._process)
        await self._stored(consumer, offsets)
        await self._ended(self._made.commit)
        consumer.offsets_counted(offsets)
        self._has_begun = False

    async def abort(
        self, cause: PenstockError | None = None, *, timeout_s: float | None = None
    ) -> None:
        if not self._has_begun:
            return
        self._has_begun = False
        ended = cause is not None and cause.code is ErrorCode.TRANSACTION_ABORTED
        if not ended or self._made.machine.may_abort:
            try:
                await self._ended(self._made.abort)
            except PenstockError:
                self._drop()

    async def close(self, timeout_s: float | None) -> None:
        self._made.stop()

    def stop(self) -> None:
        """With the process."""
        self._made.stop()

    def _drop(self) -> None:
        """What is on its way remains; the next producer ends what is open."""
        self._made.open()
        self.producer = None

    async def _stored(self, consumer: AsyncConsumer, offsets: Offsets) -> None:
        """Raises what refuses them, when the producer knows it."""
        asked: list[tuple[Who, Done]] = []
        self._made.store(lambda who, done: asked.append((who, done)))
        if not asked:
            assert self._made.machine.refusal is not None
            raise self._made.machine.refusal
        ((who, done),) = asked
        scope = Scope(self._made.transactional_id, ProducerIdentity(*who))
        try:
            await consumer.store_offsets(scope, offsets)
        except PenstockError as error:
            done(error)
            raise
        done(None)

    async def _ended(self, call: Callable[[Done], None]) -> None:
        """Calls, and waits for the outcome; raises its error."""
        outcome: asyncio.Future[PenstockError | None]
        outcome = asyncio.get_running_loop().create_future()

        def done(error: PenstockError | None) -> None:
            if not outcome.done():
                outcome.set_result(error)

        call(done)
        error = await outcome
        if error is not None:
            raise error


class Pipe(AsyncTransformer):
    """Of one process."""

    def __init__(self, reader: PipeReader, config: TransformConfig) -> None:
        self._reader = reader
        super().__init__((), config)

    @property
    def output(self) -> Output:
        """Where it sends."""
        assert isinstance(self._output, Output)
        return self._output

    async def subscribe(self) -> None:
        """Again, after its consumer was refused."""
        self._started = False
        await self.start()

    def _new_consumer(self) -> AsyncConsumer:
        return self._reader.consumer

    def _new_output(self) -> TransformOutput:
        return Output(self._reader.pipe_member, (), self.config, self.transactional_id)

    def _now_ms(self) -> int:
        return int(self._reader.member.user.loop.time() * 1000)


class PipeMember(SimMember):
    """A process of a pipe. `keeps_id`: the process that replaces it takes over the id."""

    def __init__(self, world: World, number: int, plan: MemberPlan, *, keeps_id: bool) -> None:
        super().__init__(world, number, plan)
        self._keeps_id = keeps_id

    @property
    def transactional_id(self) -> str:
        """Ends with the membership that names it."""
        run = "" if self._keeps_id else f".{self.life}"
        return f"{self.plan.group_id}/{self.name}{run}"

    def _new_reader(self) -> Reader:
        return PipeReader(self)


class CommittedFetcher(SimFetcher):
    """As in `Fetching.read` for read_committed."""

    def _read(self, broker: SimBroker, replica: Replica, offset: Offset) -> list[Batch]:
        found = broker.read(replica, offset, replica.machine.marks.last_stable_offset, BATCHES)
        if not found:
            return []
        entries = broker.disk.aborted(replica.slot, offset, found[-1].next_offset)
        shown = isolation.visible(found, isolation.named(entries))
        checks: Any = self._world.group_checks
        checks.shown(replica.key, shown, f"{broker.name} to {self._process.name}")
        return isolation.with_end_covered(shown, offset, found[-1])


class PipeConsumer(SimConsumer):
    """Of one process. What it returns is handed out, even if its partition leaves before there is
    a transaction."""

    fetcher = CommittedFetcher

    async def poll(
        self, timeout_s: float | None = 1.0, max_records: int | None = None
    ) -> list[ConsumedBatch]:
        assert max_records is not None, "the transformer says it"
        limit = self._process.world.scheduler.random.choice(AT_ONCE)
        batches = await super().poll(timeout_s, min(limit, max_records))
        reader = self._process.reader
        assert isinstance(reader, PipeReader)
        reader.polled(batches)
        return batches


class PipeReader(Reader):
    """The program of one process; ends with it."""

    _checks: PipeChecks

    def __init__(self, member: PipeMember) -> None:
        super().__init__(member)
        self.pipe_member = member

    def stop(self) -> None:
        """Stops with the process."""
        super().stop()
        self.pipe.output.stop()

    def _make(self) -> None:
        self.consumer = PipeConsumer(self.member, self)
        chance = self.world.scheduler.generator(f"pipe of {self.member.name}.{self.member.life}")
        self._one_by_one = chance.random() < 0.4
        self.pipe = Pipe(
            self,
            TransformConfig(
                group_id=self._plan.group_id,
                source=self._plan.topic,
                commit_interval_ms=chance.choice(_COMMITS_EVERY_MS),
                backoff_ms=chance.choice((0, 20, 100)),
                backoff_max_ms=400,
            ),
        )

    @property
    def behind(self) -> str:
        """What is left to do if no new records arrive; "" = nothing."""
        if unread := self.consumer.unread:
            return unread
        for where, state in self.consumer.states.items():
            end = self.world.checks.canon(self._keys[where]).end
            if state.position is None or state.position < end:
                return f"is at {state.position} of {end} in {where}"
        return ""

    # ------------------------------------------------------------ the program

    async def _live(self) -> None:
        while not await self._told(self.pipe.start):
            await pause(AGAIN_MS)
        await pause(self.world.scheduler.between(0, 5))
        while not self.ending:
            try:
                found = await self.pipe.take()
            except PenstockError as error:  # its instance id is in use
                self._refused(error)
                await pause(AGAIN_MS)
                await self._told(self.pipe.subscribe)
                continue
            assert found is not None, "nobody stops it"
            batches, out = found
            if self._one_by_one:
                await self._each(batches, out)
            else:
                await self._all(batches, out)
        await self.pipe.close()
        self.member.later(10, self.member.kill)

    def polled(self, batches: list[ConsumedBatch]) -> None:
        """What a poll has returned; in a loop over records, each is handed out when it is taken."""
        for batch in () if self._one_by_one else batches:
            self._hand_out(batch.topic_partition, batch.first_offset, batch.next_offset)

    async def _all(self, batches: list[ConsumedBatch], out: Any) -> None:
        await self._work()
        records = [record for batch in batches for record in batch.records()]
        self._transform(list(map(self._input, records)), out)

    async def _each(self, batches: list[ConsumedBatch], out: Any) -> None:
        """As `AsyncTransformer.run`, for a handler that does not fail."""
        inputs: list[Input] = []
        with self.pipe.handling():
            for record in self.pipe.one_by_one(batches):
                self._hand_out(partition_of(record), record.offset, record.offset + 1)
                inputs.append(self._input(record))
                if self.world.chaotic and self.world.scheduler.chance(0.2):
                    await self._work()
                if self.pipe.handled(record, None):
                    self._transform(inputs, out)  # as a producer that lingers
                    inputs = []
                    more: Any = await self.pipe.between()
                    if more is None:
                        return
                    out = more
            self._transform(inputs, out)

    def _input(self, record: Record) -> Input:
        source = self._keys[partition_of(record)]
        value = bytes(record.value or b"")
        key = bytes(record.key or value.partition(b":")[0])
        return Input(source, Offset(record.offset), key, value)

    def _transform(self, inputs: list[Input], out: SimOut) -> None:
        pipes, group_id = self.world.groups, self._plan.group_id
        assert isinstance(pipes, PipeGroups)
        self._checks.reads.took(group_id, out.written, inputs)
        sinks = pipes.sinks(group_id)
        lines: dict[ReplicaKey, list[tuple[bytes, bytes]]] = defaultdict(list)
        for one in inputs:
            if hops_of(one.value) >= pipes.hops_max:
                continue  # it ends here
            output = priced(group_id, one.source, one.offset, one.value)
            value = out.written.name.encode() + b"|" + output
            lines[sinks[crc32(one.key) % len(sinks)]].append((one.key, value))
        for key, records in lines.items():
            out.send(key, records)


class PipeGroups(SimGroups):
    """The pipes of a history: its groups, and what disturbs them."""

    hops_max = 1
    """How many pipes process a record, one after another."""

    def __init__(self, world: World, topic: str) -> None:
        self.lulls = Lulls(world)
        super().__init__(world, topic)

    def _strike(self) -> None:
        """Members that get lulls are not killed or frozen as well."""
        if not self.lulls.is_wanted:
            super()._strike()

    def sinks(self, _group_id: str) -> list[ReplicaKey]:
        """The partitions that a group writes to."""
        return self.world.sinks

    def _plan_group(self, group_id: str, topic: str) -> None:
        chance, static = self._random, self._random.random() < 0.3
        for _ in range(chance.choice((1, 2, 2, 3))):
            number = len(self.members) + 1
            plan = MemberPlan(
                group_id,
                topic,
                f"seat-{number}" if static else "",
                automatic=False,
                record_wise=False,
                session_ms=chance.choice((2_000, 2_000, 3_200)),
                max_poll_ms=chance.choice((2_000, 3_000)),
                work_ms=chance.choice((1, 6, 20)),
                commit_every_ms=0,
            )
            self.members.append(self._new_member(number, plan))

    def _new_member(self, number: int, plan: MemberPlan) -> SimMember:
        plan = self.lulls.patient(plan)
        return PipeMember(self.world, number, plan, keeps_id=self._random.random() < 0.4)

    def _stop_group(self) -> None:
        """Also lets an administrator wait for the moment in which the last member is removed."""
        super()._stop_group()
        for _ in range(_HASTY_RESETS):
            self.world.scheduler.after(self.world.scheduler.between(50, 160), self._reset)

    def _administer(self) -> None:
        """Requests to commit the committed offsets again: refused while a transaction may change
        them."""
        scheduler, checks = self.world.scheduler, self.world.group_checks
        if not self.world.chaotic or checks.void:
            return
        scheduler.at_pace(scheduler.random, _ADMIN_PAUSE_MS, self._administer)
        if scheduler.chance(0.6):
            self._reset()
            return
        group_id, new = self._place()
        self._ask(
            lambda number: gc.CommitRequested(
                request_id=number,
                group_id=group_id,
                member_id="",
                member_epoch=-1,
                instance_id="",
                offsets=(new,),
            ),
            1,
        )

    def _place(self) -> tuple[str, gc.NewOffset]:
        """A group, and one of its current offsets."""
        group_id = self._random.choice(self.ids)
        key = self._random.choice(self.sources(group_id))
        offset = self.world.group_checks.committed_offset((group_id, key))
        return group_id, gc.NewOffset(where=self._named(key), offset=max(0, offset))

    def _reset(self) -> None:
        checks = self.world.group_checks
        group_id, new = self._place()
        if not self.world.chaotic or checks.void:
            return
        self._resets += 1
        reset_id = f"reset {self._resets}"
        checks.reset_ids.add(reset_id)
        self._ask(
            lambda number: gc.ResetRequested(
                request_id=number, group_id=group_id, offsets=(new,), reset_id=reset_id
            ),
            1,
        )
