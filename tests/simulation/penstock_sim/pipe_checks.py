"""Checks of groups in transactions, and of the output of pipes (I11, I15, I18).

- The log of `__consumer_offsets`: pending offsets change only by the end of their transaction, by
  its outcome, in the batch that ends it; what was answered was stored.
- Input: `reads` (I13).
- Output: each readable record of the input below the group's committed offset, that did not expire
  before it was read, is there as f(record) exactly once; per partition of the input in order;
  nothing else is there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from penstock.core.batch import Batch
from penstock.core.groups import contract as gc
from penstock.core.groups.catalog import CatalogTopic
from penstock.core.groups.contract_views import Fetched, FetchRequested, OffsetAnswer
from penstock.core.groups.records import (
    EndedKey,
    EndedRecord,
    OffsetKey,
    OffsetRecord,
    PendingKey,
    PendingRecord,
)
from penstock.core.records import decode_batch
from penstock.core.transactions.records import GroupParticipant
from penstock.core.types import Offset, ProducerId, ReplicaKey, TopicId
from penstock_sim.coordinator import WatchedCoordinator
from penstock_sim.group_checks import Asked, GroupChecks
from penstock_sim.ledger import FoldingReader, hops_of
from penstock_sim.pipe import PipeGroups, priced
from penstock_sim.reads import Reads
from penstock_sim.rewind_checks import Place
from penstock_sim.scheduler import RuleError

if TYPE_CHECKING:
    from penstock_sim.world import World

Transaction = tuple[ProducerId, int]
Part = tuple[TopicId, int]
_next_offset = attrgetter("next_offset")


class SinkReader(FoldingReader):
    """Reads what pipes write; reports duplicates and records out of order at once."""

    def __init__(self, world: World, key: ReplicaKey) -> None:
        super().__init__(world, key)
        self.outputs: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
        """By group and partition of its input: offset of the input, f(record), in order."""

    def _read(self, batch: Any, *, is_hidden: bool) -> None:
        before = len(self.values)
        super()._read(batch, is_hidden=is_hidden)
        for _, value in self.values[before:]:
            self._came_out(value)

    def _lose(self, value: bytes) -> None:
        super()._lose(value)
        self._came_out(value)

    def _came_out(self, value: bytes) -> None:
        if self.key in self.world.keys and not hops_of(value):
            return  # a bank writes here too
        _, output = value.split(b"|", 1)
        group_id, partition, offset, _ = output.split(b"|", 3)
        place = (group_id.decode(), int(partition))
        found = self.outputs.setdefault(place, [])
        if found and found[-1][0] >= int(offset) and not self._is_excused(place[0]):
            raise RuleError(
                f"I15: {place} offset {int(offset)} comes out of {self.key} after "
                f"{found[-1]}: {output!r}"
            )
        found.append((int(offset), output))

    def _is_excused(self, group_id: str) -> bool:
        checks = self.world.group_checks
        return isinstance(checks, PipeChecks) and group_id in checks.excused


class PipeChecks(GroupChecks):
    """Checks of a history in which groups take part in transactions."""

    def __init__(self, world: World, *topics: CatalogTopic) -> None:
        super().__init__(world, *topics)
        self.reads = Reads(world)
        self.excused: set[str] = set()
        """Groups whose offsets were reset or have expired: they rightly read again."""
        self._pending: dict[str, dict[ProducerId, PendingRecord]] = {}
        self._ending: dict[tuple[str, ProducerId], tuple[int, dict[Part, OffsetRecord], bool]] = {}
        self._kept: dict[tuple[str, Transaction], dict[Part, int]] = {}

    # ------------------------------------------------------------ the committed log

    def committed(self, batch: Batch) -> None:
        """A batch of the offsets partition is committed."""
        super().committed(batch)
        if self._ending and not self.void:
            raise RuleError(f"I11: pending offsets are gone, nothing says why: {self._ending}")

    def _offset(self, key: OffsetKey, record: OffsetRecord | None, *, is_reset: bool) -> None:
        part = (key.topic_id, key.partition)
        place = (key.group_id, ReplicaKey(*part))
        for (group_id, producer_id), (epoch, left, _) in self._ending.items():
            if group_id == key.group_id and left.get(part) == record is not None:
                del left[part]
                self._ending[group_id, producer_id] = (epoch, left, True)
                super()._offset(key, record, is_reset=is_reset)
                return
        for pending in self._pending.get(key.group_id, {}).values():
            if part in pending.offsets:
                raise RuleError(f"I11: {place} becomes {record}, {pending} has yet to decide")
        before = self.committed_offset(place)
        if record is None and not is_reset:
            self.excused.add(key.group_id)
            self._history_of(place).append(-1)
            self.rewinds.reset(place, None)
            return
        if is_reset and (record is None or record.offset != before):
            self.excused.add(key.group_id)
        super()._offset(key, record, is_reset=is_reset)

    def _in_transaction(self, key: PendingKey | EndedKey, record: Any) -> None:
        group_id, producer_id = key.group_id, key.producer_id
        pending = self._pending.setdefault(group_id, {})
        if isinstance(key, EndedKey):
            if record is not None:
                self._ended(key, record)
        elif record is None:
            known = pending.pop(producer_id)
            left = dict(known.offsets)
            self._ending[group_id, producer_id] = (known.producer_epoch, left, False)
        else:
            transaction = (producer_id, record.producer_epoch)
            if self.has_ended(group_id, transaction):
                raise RuleError(f"I11: {group_id} keeps {record} of {transaction}, which has ended")
            if not self.world.transaction_checks.has_joined(
                GroupParticipant(group_id), transaction
            ):
                raise RuleError(f"I11: {group_id} keeps {record} and has not joined {transaction}")
            pending[producer_id] = record

    def _ended(self, key: EndedKey, record: EndedRecord) -> None:
        transaction = (key.producer_id, record.producer_epoch)
        outcome = self.world.transaction_checks.outcomes.get(transaction)
        if outcome is not record.committed:
            raise RuleError(f"I11: {key} says {record}, {transaction} was decided: {outcome}")
        epoch, left, applied = self._ending.pop(
            (key.group_id, key.producer_id), (record.producer_epoch, {}, False)
        )
        if epoch != record.producer_epoch:
            raise RuleError(f"I11: {key} ends {record} and drops what {epoch} has pending")
        if applied and not outcome:
            raise RuleError(f"I11: offsets of {transaction} count in {key.group_id}, it is aborted")
        if left and outcome:
            raise RuleError(f"I11: {transaction} is committed, {key.group_id} drops {left}")
        for part, offset in self._kept.pop((key.group_id, transaction), {}).items():
            place = (key.group_id, ReplicaKey(*part))
            if outcome and self.committed_offset(place) < offset:
                raise RuleError(f"I11: {transaction} is committed, {place} is not at {offset}")

    # ------------------------------------------------------------ answers

    def asked(self, coordinator: WatchedCoordinator, event: gc.Request) -> Asked:
        """A request comes in."""
        asked = super().asked(coordinator, event)
        if isinstance(event, FetchRequested):
            asked.undecided = self._undecided(event.group_id)
        return asked

    def _undecided(self, group_id: str) -> dict[Part, Transaction]:
        return {
            part: (producer_id, pending.producer_epoch)
            for producer_id, pending in self._pending.get(group_id, {}).items()
            for part in pending.offsets
        }

    def answered(self, asked: Asked, answer: Any) -> None:
        """An answer leaves the coordinator: it is true and cannot be undone."""
        if self.void:
            return
        match asked.event, answer:
            case gc.CommitRequested(), gc.Committed() if asked.event.transactional_id:
                for new, error in zip(asked.event.offsets, answer.errors, strict=True):
                    if error is None:
                        self._stored(asked, asked.event, new)
            case FetchRequested(), Fetched():
                self._fetched(asked, asked.event, answer.offsets)
            case _:
                super().answered(asked, answer)

    def _fetched(
        self, asked: Asked, event: FetchRequested, offsets: Iterable[OffsetAnswer]
    ) -> None:
        before = asked.undecided
        now = {} if self._is_deposed(asked.coordinator) else self._undecided(event.group_id)
        for seen in offsets:
            part = (seen.topic_id, seen.partition)
            if seen.error is not None:
                continue
            if part in now and now[part] == before.get(part):
                raise RuleError(f"I11: {event} is told {seen}, {now[part]} has yet to decide")
            self._was_true(asked, (event.group_id, ReplicaKey(*part)), seen.offset)

    def _stored(self, asked: Asked, event: gc.CommitRequested, new: gc.NewOffset) -> None:
        transaction = (event.producer_id, event.producer_epoch)
        part = (new.where.topic_id, new.where.partition)
        pending = self._pending.get(event.group_id, {}).get(event.producer_id)
        self.commits += 1
        if self.has_ended(event.group_id, transaction):
            pass  # it has been decided and reported meanwhile
        elif pending is None or pending.producer_epoch != event.producer_epoch:
            raise RuleError(f"I16: {event} was answered, {pending} is kept")
        else:
            found = pending.offsets.get(part)
            if found is None or found.offset < new.offset:
                raise RuleError(f"I16: {event} was answered, {pending} is kept")
            kept = self._kept.setdefault((event.group_id, transaction), {})
            kept[part] = max(new.offset, kept.get(part, 0))
        if event.member_id and (asked.current is None or asked.current.epoch != event.member_epoch):
            raise RuleError(f"I18: commit {event} was accepted, the member was {asked.current}")

    # ------------------------------------------------------------ members

    def shown(self, key: ReplicaKey, batches: Iterable[Batch], who: str) -> None:
        """A member that reads committed records gets these."""
        if self.void:
            return
        for batch in batches:
            if not self._is_visible(batch):
                raise RuleError(f"I11: {who}: {batch.header} of {key} is not committed")

    def _is_visible(self, batch: Batch) -> bool:
        header = batch.header
        if header.is_control:
            return False
        who = (header.producer_id, header.producer_epoch)
        outcome = self.world.transaction_checks.outcomes.get(who)
        return not header.is_transactional or outcome is True

    def handed_out(self, group_id: str, who: str, key: ReplicaKey, first: int, end: int) -> None:
        """A member was handed out [first, end)."""
        if not self.void:
            self._pass_over(who, key, first)
        super().handed_out(group_id, who, key, first, end)

    def commits_to(self, who: str, key: ReplicaKey, offset: int, *, automatic: bool) -> None:
        """A member is about to commit."""
        if not self.void:
            self._pass_over(who, key, offset)
        super().commits_to(who, key, offset, automatic=automatic)

    def _pass_over(self, who: str, key: ReplicaKey, to: int) -> None:
        """Records that no reader sees count as handed."""
        reading = self._readings.get((who, key))
        if reading is None:
            return
        start = max(reading.handed or 0, self.log_start(key))
        canon = self.world.checks.canon(key)
        first = bisect_right(canon.batches, start, key=_next_offset)
        for batch in islice(canon.batches, first, None):
            if batch.base_offset >= to:
                break
            if self._is_visible(batch):
                return
        if start < to <= canon.end:
            reading.handed = to

    # ------------------------------------------------------------ the end

    def check_end(self, places: list[Place]) -> None:
        """I13, I15: the output is f(input), made of what was committed before."""
        if self.void:
            return
        self.reads.check_provenance()
        sinks = [one for one in self.world.committed_readers if isinstance(one, SinkReader)]
        known = {(group_id, key.partition) for group_id, key in places}
        for sink in sinks:
            if sink.outputs.keys() - known:
                raise RuleError(f"I15: {sink.key} has outputs of {sink.outputs.keys() - known}")
        for place in places:
            if place[0] not in self.excused:
                inputs = self._inputs(place[1])
                span = range(self.log_start(place[1]), self.committed_offset(place))
                self.reads.check_once(place, inputs, span)
                self._check_output(place, inputs, span, sinks)

    def _check_output(
        self, place: Place, inputs: dict[Offset, bytes], span: range, sinks: list[SinkReader]
    ) -> None:
        (group_id, key), groups = place, self.world.groups
        assert isinstance(groups, PipeGroups)
        found: dict[int, bytes] = {}
        for sink in sinks:
            for offset, output in sink.outputs.get((group_id, key.partition), ()):
                if offset in found:
                    raise RuleError(f"I15: {place} offset {offset} came out twice: {output!r}")
                found[offset] = output
        self.piped += len(found)
        for offset, output in found.items():
            if offset >= span.stop:
                raise RuleError(f"I15: {place}: {output!r} is out, committed is {span.stop}")
            if offset not in inputs:
                raise RuleError(f"I15: {place}: {output!r} is out, nothing like it came in")
            if output != priced(group_id, key, offset, inputs[Offset(offset)]):
                raise RuleError(f"I15: {place}: {output!r} came out of {inputs[Offset(offset)]!r}")
        goes_on = [offset for offset, value in inputs.items() if hops_of(value) < groups.hops_max]
        missing = [offset for offset in goes_on if offset in span and offset not in found]
        if missing:
            raise RuleError(f"I15: {place}: {missing[:9]} never came out, committed is {span.stop}")

    def _inputs(self, key: ReplicaKey) -> dict[Offset, bytes]:
        found: dict[Offset, bytes] = {}
        for batch in self.world.checks.canon(key).batches:
            if self._is_visible(batch):
                for index, value in enumerate(decode_batch(batch).values()):
                    found[Offset(batch.base_offset + index)] = bytes(value or b"")
        return found
