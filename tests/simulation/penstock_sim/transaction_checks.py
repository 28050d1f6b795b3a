"""Checks of transactions in each step (I10, I11, I12, I14, I16).

Outcomes are taken from the committed log of `__transactions`; `View` has the transactions of a
partition's committed log, computed batch by batch. These are compared with every replica's last
stable offset and index of aborted transactions, every marker, every answer to a producer, and every
batch that a reader of committed records gets or does not get.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from penstock.core.batch import Batch
from penstock.core.records import decode_batch
from penstock.core.replication import contract as rc
from penstock.core.replication import contract_leader as lc
from penstock.core.transactions import TransactionCoordinator
from penstock.core.transactions import contract as tc
from penstock.core.transactions.records import (
    CONFIRMATION_KEY,
    BranchKey,
    BranchRecord,
    GroupParticipant,
    IdKey,
    IdRecord,
    LedgerKey,
    LedgerRecord,
    Participant,
    decode_key,
    decode_value,
)
from penstock.core.types import Offset, ProducerId, ReplicaKey, is_transactional_producer
from penstock_sim.scheduler import BASE_TIME_MS, RuleError
from penstock_sim.transactions import CONFIG, TRANSACTIONS_KEY, WatchedCoordinator

if TYPE_CHECKING:
    from penstock_broker.replication.replica import Replica
    from penstock_sim.broker import SimBroker
    from penstock_sim.committed_reader import CommittedReader
    from penstock_sim.transactional import Transaction, Transactor, Who
    from penstock_sim.world import World


Place = ReplicaKey | GroupParticipant
"""A participant of a transaction."""


@dataclass(slots=True)
class View:
    """The transactions of one partition, according to its committed log.

    stable: the last stable offset for each high watermark. ended: first marker and its outcome.
    spans: first and last offset of the data.
    """

    stable: dict[int, int] = field(default_factory=lambda: {0: 0})
    open: dict[tuple[ProducerId, int], int] = field(default_factory=dict)
    ended: dict[tuple[ProducerId, int], tuple[Offset, bool]] = field(default_factory=dict)
    spans: dict[tuple[ProducerId, int], tuple[int, int]] = field(default_factory=dict)

    def extend(self, batch: Batch, who: str) -> None:
        """Adds the next committed batch; checks I12."""
        header = batch.header
        transaction = (header.producer_id, header.producer_epoch)
        if header.is_marker:
            _, commit = self.ended.setdefault(transaction, (batch.base_offset, header.commits))
            if commit is not header.commits:
                raise RuleError(f"I12: {who}: markers of {transaction} differ")
            self.open.pop(transaction, None)
        elif header.is_transactional:
            late = [t for t in self.ended if t[0] == transaction[0] and t[1] >= transaction[1]]
            if late:
                raise RuleError(f"I12: {who}: {header} lies behind the marker of {late}")
            others = [t for t in self.open if t[0] == transaction[0] and t != transaction]
            if others:
                raise RuleError(f"I12: {who}: {header} lies before the marker of {others}")
            self.open.setdefault(transaction, batch.base_offset)
            first, _ = self.spans.get(transaction, (batch.base_offset, 0))
            self.spans[transaction] = (first, batch.next_offset - 1)
        self.stable[batch.next_offset] = min(self.open.values(), default=batch.next_offset)


class Named(Protocol):
    """A producer. `instance`: its last one that took the id."""

    name: str
    transactional_id: str
    instance: str


class Told(Protocol):
    """A transaction, and the outcome that its producer got."""

    who: Who
    told: bool | None


class TransactionChecks:
    """Is told of every step; raises `RuleError`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.outcomes: dict[tuple[ProducerId, int], bool] = {}
        self.void = False
        """More was lost than is promised to survive: nothing is checked any more."""
        self.decisions = 0
        self._joined: dict[tuple[ProducerId, int], set[Place]] = {}
        self._branches: dict[BranchKey, BranchRecord] = {}
        self._ids: dict[str, IdRecord] = {}
        self._owners: dict[tuple[ProducerId, int], str] = {}
        self._views: dict[ReplicaKey, View] = {}

    @property
    def newest_granted(self) -> Who | None:
        """The identity of a transactional producer that was assigned last."""
        ours = (who for who in reversed(self._owners) if is_transactional_producer(who[0]))
        return next(ours, None)

    def view(self, key: ReplicaKey) -> View:
        known = self._views.get(key)
        if known is None:
            known = self._views[key] = View()
        return known

    # ------------------------------------------------------------ coordinators

    def decided(self, host: WatchedCoordinator, ready: tc.Ready) -> None:
        """After every Ready: the state is what its records add up to."""
        self.decisions += len(ready.ended)
        if not ready.records or self.void:
            return
        rebuilt = TransactionCoordinator(CONFIG, BASE_TIME_MS)
        for key, value in host.shadow.items():
            rebuilt.load(key, value)
        rebuilt.start(self.world.scheduler.wall_ms - BASE_TIME_MS)
        if _durable(host.machine) != _durable(rebuilt):
            raise RuleError(f"I16: {host} has another state than its log")

    # ------------------------------------------------------------ what is committed

    def committed(self, key: ReplicaKey, batch: Batch, who: str) -> None:
        """The next batch of a partition's committed log."""
        if self.void or self.world.transactions is None:
            return
        if key == TRANSACTIONS_KEY:
            columns = decode_batch(batch)
            for record, value in zip(columns.keys(), columns.values(), strict=True):
                self._recorded(record, value)
            if self.world.spark is not None:
                self.world.spark.checks.appended()
            return
        self.view(key).extend(batch, who)
        header = batch.header
        transaction = (header.producer_id, header.producer_epoch)
        if header.is_marker:
            if self.outcomes.get(transaction) is not header.commits:
                raise RuleError(f"I11: {who}: marker {header}, {transaction} was never so decided")
        elif header.is_transactional and key not in self._joined.get(transaction, ()):
            raise RuleError(f"I11: {who}: {header} is stored, and its partition has not joined")

    def _recorded(self, encoded: bytes | None, value: bytes | None) -> None:
        if encoded == CONFIRMATION_KEY:
            return  # changes nothing
        key = decode_key(encoded)
        decoded = None if key is None or value is None else decode_value(key, value)
        match key, decoded:
            case IdKey(name), IdRecord():
                self._ids[name] = decoded
            case BranchKey(), BranchRecord():
                before = self._branches.get(key)
                self._branches[key] = decoded
                self._changed(before, decoded)
                if self.world.operator is not None:
                    self.world.operator.checks.branch_changed(key, decoded)
                if self.world.spark is not None and key.branch > 0:
                    self.world.spark.checks.branch_changed(key, before, decoded)
            case LedgerKey(), LedgerRecord() if self.world.spark is not None:
                self.world.spark.checks.ledger_changed(decoded)
            case _:
                raise RuleError(f"I11: {key} is gone")

    def _changed(self, before: BranchRecord | None, now: BranchRecord) -> None:
        present = (now.producer_id, now.epoch)
        if present in self.outcomes:
            raise RuleError(f"I11: {present} is decided, and goes on")
        self._joined.setdefault(present, set()).update(map(_key, now.joined))
        decided = [(e.producer_id, e.epoch, e.commit) for e in now.finishing.values()]
        if now.last is not None:
            decided.append((now.last.producer_id, now.last.epoch, now.last.commit))
        for producer_id, epoch, commit in decided:
            if self.outcomes.setdefault((producer_id, epoch), commit) is not commit:
                raise RuleError(f"I11: {(producer_id, epoch)} is decided twice")
        for participant, ending in () if before is None else before.finishing.items():
            where, transaction = _key(participant), (ending.producer_id, ending.epoch)
            dropped = now.finishing.get(participant) != ending
            if self.world.is_deleted(where):
                continue
            if dropped and not self._has_ended(where, transaction):
                raise RuleError(f"I14: {where} is let go and has no marker of {transaction}")

    def has_joined(self, where: Place, transaction: Who) -> bool:
        """According to the committed log of the coordinators."""
        return where in self._joined.get(transaction, ())

    def _has_ended(self, where: Place, transaction: Who) -> bool:
        """According to the committed log of the participant."""
        if isinstance(where, GroupParticipant):
            return self.world.group_checks.has_ended(where.group_id, transaction)
        return transaction in self.view(where).ended

    def marked(
        self, broker: SimBroker, key: ReplicaKey, end: lc.EndRequested, reply: lc.ProduceReply
    ) -> None:
        """A leader answers that the marker is stored."""
        known = self.view(key).ended.get((end.producer_id, end.producer_epoch))
        if self.world.is_deleted(key):
            return
        if not self.void and (known is None or known[1] is not end.commit):
            raise RuleError(f"I11: {broker.name} {key} answers {reply} to {end}, it has {known}")

    # ------------------------------------------------------------ replicas

    def handled(self, broker: SimBroker, replica: Replica, after: rc.Marks) -> None:
        """After every event of a replica: its last stable offset is that of the log.

        It may be ahead of the one for its own high watermark, which may be old: by as much as is
        decided below the newest high watermark.
        """
        if self.void or self.world.transactions is None or replica.key == TRANSACTIONS_KEY:
            return
        stable = self.view(replica.key).stable
        least = stable.get(after.high_watermark)
        if least is None:
            return
        stable_end = stable[self.world.checks.canon(replica.key).end]
        if after.log_start_offset > stable_end:
            raise RuleError(f"I20: {broker.name} {replica.key} begins past the stable end: {after}")
        most = max(after.log_start_offset, min(stable_end, after.high_watermark))
        least = max(after.log_start_offset, least)
        if not least <= after.last_stable_offset <= most:
            raise RuleError(
                f"I12: {broker.name} {replica.key} has last stable offset "
                f"{after.last_stable_offset}, by its log it is {least} to {most}: {after}"
            )

    def check_index(self, broker: SimBroker, replica: Replica) -> None:
        """Only aborted transactions are reported as such, and all that have data here are."""
        marks, view = replica.machine.marks, self.view(replica.key)
        end = marks.high_watermark
        if self.void or end == 0:
            return
        found = broker.disk.aborted(replica.slot, marks.log_start_offset, end)
        told = {(one.producer_id, one.producer_epoch): one.marker_offset for one in found}
        for transaction, marker in told.items():
            if marker < end and view.ended.get(transaction) != (marker, False):
                raise RuleError(f"I16: {broker.name} {replica.key} tells {transaction} aborted")
        own = broker.disk.batches(replica.slot) if self.world.compacts else []
        flagged = {
            (batch.header.producer_id, batch.header.producer_epoch)
            for batch in own
            if batch.header.is_transactional and not batch.header.is_control
        }
        for transaction, (marker, commit) in view.ended.items():
            _, last = view.spans.get(transaction, (0, -1))
            needed = not commit and marker < end and last >= marks.log_start_offset
            if self.world.compacts:
                # A pass, here or where this log was copied from, has applied what it knew.
                needed = needed and transaction in flagged
            if needed and told.get(transaction) != marker:
                raise RuleError(f"I16: {broker.name} {replica.key} forgot that {transaction} ended")

    # ------------------------------------------------------------ producers

    def granted(self, who: Who, instance: str) -> None:
        """A producer was assigned this epoch."""
        owner = self._owners.setdefault(who, instance)
        if owner != instance and not self.void:
            raise RuleError(f"I10: {who} was given to {owner} and to {instance}")

    def told(self, transactor: Named, transaction: Told, answer: tc.Ended) -> None:
        """A producer is told how its transaction ended."""
        if self.void:
            return
        if self.outcomes.get(transaction.who) is not transaction.told:
            raise RuleError(f"I11: {transactor.name} was told {answer} of {transaction.who}")
        if answer.visible:
            late = [
                key
                for key in self._joined.get(transaction.who, ())
                if not self._has_ended(key, transaction.who) and not self.world.is_deleted(key)
            ]
            if late:
                raise RuleError(f"I11: {transaction.who} is said to be visible, not on {late}")

    def fenced(self, transactor: Named) -> None:
        """A producer is told that another instance has its id."""
        owner = self._ids.get(transactor.transactional_id)
        if not self.void and owner is not None and owner.instance_id == transactor.instance:
            raise RuleError(f"I10: {transactor.name} is fenced, and nobody has taken its id")

    # ------------------------------------------------------------ the end

    def unsettled(self) -> str:
        """Why a transaction has not ended everywhere; "" = all have."""
        reborn = [] if self.world.rebirth is None else self.world.rebirth.keys
        for key in (*self.world.data_keys, *reborn):
            if self.view(key).open and not self.void:
                return f"{key} has open transactions: {self.view(key).open}"
            for broker in self.world.members(key):
                replica = broker.replicas.get(key)
                if replica is None:
                    return f"{broker.name} has no {key}"
                marks = replica.machine.marks
                if marks.last_stable_offset != marks.high_watermark:
                    return f"{broker.name} {key}: {marks}"
        return ""

    def check_end(self, readers: list[CommittedReader], transactors: list[Transactor]) -> None:
        """Everything committed was read once, and nothing else; the bank adds up."""
        if self.void:
            return
        for key in self.world.data_keys:
            for broker in self.world.members(key):
                if broker.replicas[key].machine.error is None:
                    self.check_index(broker, broker.replicas[key])
        seen = {payload for reader in readers for payload in reader.seen}
        missed = {payload for reader in readers for payload in reader.missed}
        for transactor in transactors:
            for transaction in transactor.sent:
                self._check_transaction(transaction, seen, missed)

    def _check_transaction(
        self, transaction: Transaction, seen: set[bytes], missed: set[bytes]
    ) -> None:
        payloads, outcome = transaction.payloads, self.outcomes.get(transaction.who)
        visible = payloads & seen
        if visible and outcome is not True:
            raise RuleError(f"I11: {visible} was read, {transaction.who} ended with {outcome}")
        lost = (transaction.acked & payloads) - seen - missed
        if outcome is True and lost:
            raise RuleError(f"I11: {lost} is committed by {transaction.who}, and was never read")
        if payloads & missed or not transaction.is_readable or self.world.compacts:
            return
        moved = sum(int(payload.rsplit(b":", 1)[1]) for payload in visible)
        if moved:
            raise RuleError(f"I15: {transaction.who} moved {moved} in all: {visible}")


def _durable(machine: TransactionCoordinator) -> Any:
    holders = {
        name: (holder.record, {n: branch.record for n, branch in holder.branches.items()})
        for name, holder in machine.holders.items()
    }
    return holders, machine.ledgers


def _key(participant: Participant) -> Place:
    if isinstance(participant, GroupParticipant):
        return participant
    return ReplicaKey(participant.topic_id, participant.partition)
