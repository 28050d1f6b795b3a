"""Pipes: members of a group that read committed records, write f(record) and commit atomically.

    poll ─▶ records ─▶ begin, send f(record) … ─▶ offsets + commit ─▶ the next poll
      ▲                     │ partitions lost, a batch or offsets refused, fenced
      └── seek to what is committed ◀── abort

A member is a consumer as in `reading` and a producer as in `producing`, in one process, which is
killed and frozen, and whose transactional id ends with its membership. It gives up a partition only
after a commit. `pipe_checks` checks the output (I15).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final
from zlib import crc32

from penstock.client.consumer.transaction_offsets import Scope
from penstock.client.group.contract import GroupPartition, Partitions
from penstock.client.group.model import OffsetAndMetadata
from penstock.client.model import ConsumedBatch
from penstock.client.transaction.machine import State
from penstock.core import isolation
from penstock.core.batch import Batch
from penstock.core.groups import contract as gc
from penstock.core.types import Offset, ProducerIdentity, ReplicaKey, TopicId, TopicPartition
from penstock.errors import PenstockError
from penstock_sim.groups import SimGroups
from penstock_sim.ledger import hops_of
from penstock_sim.lulls import Lulls
from penstock_sim.members import MemberPlan, SimMember
from penstock_sim.producing import Done, SimProducer, Who
from penstock_sim.reading import Reader
from penstock_sim.reads import Input

if TYPE_CHECKING:
    from penstock_broker.replication.replica import Replica
    from penstock_sim.broker import SimBroker
    from penstock_sim.pipe_checks import PipeChecks
    from penstock_sim.world import World

_ADMIN_PAUSE_MS: Final = 100
_HASTY_RESETS: Final = 6
_REWIND_PAUSE_MS: Final = 20


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


class PipeReader(Reader):
    """The reader of one process; ends with it."""

    _checks: PipeChecks

    def __init__(self, member: PipeMember) -> None:
        super().__init__(member)
        self.producer = PipeProducer(member)
        self._inputs: list[Input] = []
        self._doomed = False
        """The open transaction has, or will have, records of partitions that were lost."""

    def stop(self) -> None:
        """Stops with the process."""
        super().stop()
        self.producer.stop()

    @property
    def behind(self) -> str:
        """What is left to do if no new records arrive; "" = nothing."""
        if self.session.readable != frozenset(self._installed.values()):
            return f"owns {self.session.readable}, reads {set(self._installed)}"
        for where, state in self.assignment.states.items():
            end = self.world.checks.canon(_key(self._installed[where])).end
            if state.position is None or state.position < end:
                return f"is at {state.position} of {end} in {where}"
        return ""

    def _read(self, broker: SimBroker, replica: Replica, offset: Offset) -> list[Batch]:
        """As in `Fetching.read` for read_committed."""
        found = broker.read(replica, offset, replica.machine.marks.last_stable_offset, 8)
        if not found:
            return []
        entries = broker.disk.aborted(replica.slot, offset, found[-1].next_offset)
        shown = isolation.visible(found, isolation.named(entries))
        self._checks.shown(replica.key, shown, f"{broker.name} to {self.member.name}")
        return isolation.with_end_covered(shown, offset, found[-1])

    @property
    def _pipes(self) -> PipeGroups:
        groups = self.world.groups
        assert isinstance(groups, PipeGroups)
        return groups

    # ------------------------------------------------------------ one round

    def _hand_out(self, batch: ConsumedBatch, first: int, end: int) -> None:
        super()._hand_out(batch, first, end)
        source = _key(self._installed[batch.topic_partition])
        columns = batch.columns
        keys, values = columns.keys(), columns.values()
        for index in range(batch.lo, batch.hi):
            value = bytes(values[index] or b"")
            key = bytes(keys[index] or value.partition(b":")[0])
            self._inputs.append(Input(source, columns.offset_at(index), key, value))

    def _worked(self) -> None:
        if self._doomed:
            self._give_in(self._poll)
        elif self._inputs:
            self._begin_transaction(self._transform, self._poll)
        else:
            self._end_or_poll()

    def _begin_transaction(self, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
        def begun(error: PenstockError | None) -> None:
            if error is not None or self._doomed:
                self._give_in(otherwise)
            else:
                then()

        match self.producer.machine.state:
            case State.OPEN:
                then()
            case State.READY:
                self.producer.begin(begun)
            case _:
                self._give_in(otherwise)

    def _transform(self) -> None:
        inputs, self._inputs = self._inputs, []
        written, pipes, group_id = self.producer.written, self._pipes, self._plan.group_id
        assert written is not None
        self._checks.reads.took(group_id, written, inputs)
        sinks = pipes.sinks(group_id)
        lines: dict[ReplicaKey, list[tuple[bytes, bytes]]] = defaultdict(list)
        for one in inputs:
            if hops_of(one.value) >= pipes.hops_max:
                continue  # it ends here
            output = priced(group_id, one.source, one.offset, one.value)
            value = written.name.encode() + b"|" + output
            lines[sinks[crc32(one.key) % len(sinks)]].append((one.key, value))
        for key, records in lines.items():
            self.producer.send(key, records)
        self._end_or_poll()

    def _end_or_poll(self) -> None:
        if self._handed_out() and self._pipes.ends_here():
            self._finish(self._poll)
        else:
            self._poll()

    def _finish(self, then: Callable[[], None]) -> None:
        """Commits what is written with the offsets after it; or aborts and goes back."""
        if self._doomed:
            self._give_in(then)
        else:
            self._begin_transaction(partial(self._commit, then), then)

    def _commit(self, then: Callable[[], None]) -> None:
        offsets = self._handed_out()
        if not offsets:
            self._give_in(then)
            return

        def committed(error: PenstockError | None) -> None:
            if error is not None:
                self._give_in(then)
                return
            self._doomed = False
            for where, offset in offsets.items():
                self.assignment.committed(where, offset)
            then()

        def store(who: Who, done: Done) -> None:
            self._pipes.lulls.storing(self.member)
            scope = Scope(self.producer.transactional_id, ProducerIdentity(*who))
            self.session.store(scope, offsets, done)

        self.producer.store(store)
        self.producer.commit(committed)

    def _give_in(self, then: Callable[[], None]) -> None:
        """Aborts the open transaction, and reads again from the committed offsets."""
        self._inputs.clear()

        def resolved(_error: PenstockError | None) -> None:
            if self.producer.machine.state is State.FENCED:
                self.producer.open()
            self._doomed = False
            self._rewind(then)

        self.producer.resolve(resolved)

    def _rewind(self, then: Callable[[], None]) -> None:
        wanted = sorted(self._installed.values())
        if not wanted:
            then()
            return
        states = {each.where: self.assignment.states[each.where] for each in wanted}

        def found(offsets: dict[TopicPartition, OffsetAndMetadata | None]) -> None:
            for each in wanted:
                if self.assignment.states.get(each.where) is states[each.where]:
                    self._seek(each, offsets.get(each.where))
            then()

        def again() -> None:
            self.member.later(_REWIND_PAUSE_MS, self._rewind, then)

        self.session.fetch({each.where: each.topic_id for each in wanted}, found, again)

    def _seek(self, each: GroupPartition, committed: OffsetAndMetadata | None) -> None:
        self.assignment.rewind(each.where, committed)
        position = self.assignment.states[each.where].position
        self.world.scheduler.note(self.member.name, "goes back", each.where, position)
        self._checks.began(self._plan.group_id, self._who[each.where], _key(each), position)

    # ------------------------------------------------------------ partitions come and go

    def lose(self, partitions: Partitions) -> None:
        """Stops reading these at once; records written from them must not count."""
        gone = partitions & frozenset(self._installed.values())
        unsent = bool(self._inputs) or self.producer.machine.state is not State.READY
        self._doomed = self._doomed or (bool(gone) and unsent)
        super().lose(partitions)

    def _give_up(self, partitions: Partitions, then: Callable[[], None]) -> None:
        """Last chance before these are revoked: commits, then stops reading."""

        def dropped() -> None:
            self._drop(partitions & frozenset(self._installed.values()))
            then()

        if partitions and (self._doomed or self._handed_out()):
            self._finish(dropped)
        elif partitions and self.producer.machine.state is not State.READY:
            self._give_in(dropped)
        else:
            dropped()


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

    def ends_here(self) -> bool:
        """Whether a round is the last one of its transaction."""
        return not self.world.chaotic or self.world.scheduler.chance(0.5)

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


def _key(each: GroupPartition) -> ReplicaKey:
    return ReplicaKey(TopicId(each.topic_id), each.partition)
