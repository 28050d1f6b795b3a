"""Transactional producers that stall, die and share ids, and the nemesis for them.

    init ─▶ batches to 1–3 partitions, each until it is acknowledged ─▶ end ─▶ the next one
      ▲         └ given up: the transaction is aborted                  └ repeated until answered
      └──── dead, or fenced: another instance of the same id, a while later

Each transaction appends batches with an amount that no other producer writes: the amounts of one
transaction add up to 0, and so do those of all visible batches (a bank). `Transaction` records the
outcome that a producer was told, and by which answer; `transaction_checks` checks it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.batch import Batch, BatchFlags, BatchHeader
from penstock.core.encode import encode_columns
from penstock.core.records import build_batch
from penstock.core.replication.contract_leader import ProduceReply
from penstock.core.transactions import contract as tc
from penstock.core.types import (
    TRANSACTIONAL_PRODUCER_BIT,
    ProducerId,
    ReplicaKey,
)
from penstock.errors import ErrorCode, PenstockError
from penstock_sim.batches import sealed
from penstock_sim.compaction import some_keys, some_values
from penstock_sim.deletion import KEY as SHORT_LIVED_KEY
from penstock_sim.process import Process
from penstock_sim.rebirth import is_reborn
from penstock_sim.scheduler import RuleError
from penstock_sim.transactions import TRANSACTIONS_KEY

if TYPE_CHECKING:
    from penstock_sim.broker import SimBroker
    from penstock_sim.committed_reader import CommittedReader
    from penstock_sim.world import World

Who = tuple[ProducerId, int]
_CLIENT_NODE: Final = 800
_ATTEMPTS: Final = 8


@dataclass(slots=True, eq=False)
class Transaction:
    """One transaction. `told`: the outcome its producer got; None: none, or it was fenced."""

    who: Who
    lanes: dict[ReplicaKey, list[Batch]]
    acked: set[bytes] = field(default_factory=set)
    asked: bool | None = None
    told: bool | None = None

    @property
    def payloads(self) -> set[bytes]:
        """The payloads that can be read in the end."""
        lanes = [lane for key, lane in self.lanes.items() if not _may_go(key)]
        return {batch.payload for lane in lanes for batch in lane}

    @property
    def is_readable(self) -> bool:
        """All of it can be read."""
        return not any(map(_may_go, self.lanes))


def _may_go(key: ReplicaKey) -> bool:
    return key == SHORT_LIVED_KEY or is_reborn(key)


class Transactor(Process):
    """A process that writes transactions under one id, one instance after another."""

    def __init__(self, world: World, number: int, transactional_id: str) -> None:
        super().__init__(world, f"x{number}", _CLIENT_NODE + number)
        self.transactional_id = transactional_id
        self.sent: list[Transaction] = []
        self.idle = True
        self.instance = ""
        self._timeout_ms = world.scheduler.random.choice((120, 250, 400))
        self._pause_ms = world.scheduler.random.choice((1, 4, 15))
        self._lanes: dict[ReplicaKey, int] = {}

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Starts another instance: a new object in a new process."""
        self._life += 1
        self.instance = f"{self.name}.{self._life}"
        self.idle = False
        chance = self.world.scheduler.random
        self._steps_left = chance.choice((8, 40, 200, 10_000))
        self._init()

    def _die(self) -> None:
        super()._die()
        self.idle = True
        self._restart_later()

    def _restart_later(self) -> None:
        if self.world.chaotic:
            delay_ms = self.world.scheduler.random.choice((1, 20, 80, 250))
            self.world.scheduler.after(delay_ms, self._restart, self._life)

    def _restart(self, life: int) -> None:
        if life == self._life and self.world.chaotic:
            self.start()

    # ------------------------------------------------------------ calls

    def _init(self) -> None:
        instance = self.instance
        self._ask(
            lambda number: tc.InitRequested(
                request_id=number,
                transactional_id=self.transactional_id,
                instance_id=instance,
                fresh_producer_id=ProducerId(TRANSACTIONAL_PRODUCER_BIT + number),
                timeout_ms=self._timeout_ms,
                client_id=self.name,
            ),
            self._initialized,
        )

    def _initialized(self, answer: tc.ProducerInitialized | PenstockError) -> None:
        if isinstance(answer, PenstockError):
            self._refused(answer)
            return
        self._next((answer.producer_id, answer.producer_epoch))

    def _refused(self, error: PenstockError) -> None:
        """Another instance has the id, or its coordinator has lost it: this one ends."""
        is_fenced = error.code is ErrorCode.PRODUCER_FENCED
        if not is_fenced and not self.world.transaction_checks.void:
            raise RuleError(f"I10: {self.name} hears {error.code.name}: {error}")
        self.world.transaction_checks.fenced(self)
        self._life += 1
        self.idle = True
        self._restart_later()

    # ------------------------------------------------------------ a transaction

    def _next(self, who: Who) -> None:
        self.world.transaction_checks.granted(who, self.instance)
        if not self.world.chaotic:
            self.idle = True
            return
        delay_ms = self.world.scheduler.between(0.2, 2) * self._pause_ms
        self._later(delay_ms, self._begin, who)

    def _begin(self, who: Who) -> None:
        transaction = self._new_transaction(who)
        self.sent.append(transaction)
        self._lanes = dict.fromkeys(transaction.lanes, 0)
        self.world.scheduler.note(self.name, "begins", who, list(transaction.lanes))
        for key in transaction.lanes:
            self._produce(transaction, key, 1)

    def _new_transaction(self, who: Who) -> Transaction:
        chance = self.world.scheduler.random
        count = min(chance.choice((1, 2, 2, 3)), len(self.world.joined_keys))
        keys = chance.sample(self.world.joined_keys, count)
        amounts = [chance.randrange(1, 100) for _ in keys[1:]]
        lanes = {
            key: self._lane(who, key, amount)
            for key, amount in zip(keys, [-sum(amounts), *amounts], strict=True)
        }
        return Transaction(who, lanes)

    def _lane(self, who: Who, key: ReplicaKey, amount: int) -> list[Batch]:
        """The first batch has the amount, the others have 0."""
        sequence, lane = 0, []
        for index in range(self.world.scheduler.random.choice((1, 1, 2, 3))):
            count = self.world.scheduler.random.randrange(1, 4)
            moved = 0 if index else amount
            text = f"{self.name}:{self._life}:{len(self.sent)}:{key.partition}:{index}:{moved}"
            lane.append(transactional_batch(self.world, text, who, sequence, count))
            sequence += count
        return lane

    def _produce(self, transaction: Transaction, key: ReplicaKey, attempt: int) -> None:
        if self._is_over(transaction):
            return
        batch = transaction.lanes[key][self._lanes[key]]
        answered = partial(self._produced, transaction, key, attempt)
        self._deliver(key, batch, self.transactional_id, answered)

    def _produced(
        self, transaction: Transaction, key: ReplicaKey, attempt: int, reply: ProduceReply | None
    ) -> None:
        if self._is_over(transaction):
            return
        lane, at = transaction.lanes[key], self._lanes[key]
        if reply is None or reply.error is not None:
            final = reply is not None and reply.error is not None and not reply.error.retriable
            if final or attempt >= _ATTEMPTS:
                self._end(transaction, commit=False)
            else:
                delay_ms = self.world.scheduler.between(5, 50)
                self._later(delay_ms, self._produce, transaction, key, attempt + 1)
            return
        transaction.acked.add(lane[at].payload)
        self._lanes[key] = at + 1
        if at + 1 < len(lane):
            self._produce(transaction, key, 1)
        elif all(self._lanes[other] == len(transaction.lanes[other]) for other in self._lanes):
            self._end(transaction, commit=not self.world.scheduler.chance(0.25))

    def _is_over(self, transaction: Transaction) -> bool:
        """It was given up, or its end was requested: answers about its batches are late."""
        return transaction is not self.sent[-1] or transaction.asked is not None

    def _end(self, transaction: Transaction, *, commit: bool) -> None:
        transaction.asked = commit
        producer_id, epoch = transaction.who
        wait_ms = self.world.scheduler.random.choice((0, 0, 60))
        self._ask(
            lambda number: tc.EndRequested(
                request_id=number,
                transactional_id=self.transactional_id,
                producer_id=producer_id,
                producer_epoch=epoch,
                commit=commit,
                wait_visible_ms=wait_ms,
            ),
            lambda answer: self._ended(transaction, answer),
        )

    def _ended(self, transaction: Transaction, answer: tc.Ended | PenstockError) -> None:
        if isinstance(answer, PenstockError):
            self._refused(answer)
            return
        transaction.told = transaction.asked if answer.error is None else False
        self.world.transaction_checks.told(self, transaction, answer)
        self._next((answer.producer_id, answer.producer_epoch))


def transactional_batch(world: World, text: str, who: Who, sequence: int, count: int) -> Batch:
    """`count` records of a transaction; the batch is told from all others by `text`."""
    if world.compacts:
        columns = encode_columns(
            some_values(world, [f"{text}/{index}" for index in range(count)]),
            some_keys(world, count),
            timestamps_ms=world.scheduler.wall_ms,
        )
        return build_batch(
            columns,
            flags=BatchFlags.TRANSACTIONAL,
            producer_id=who[0],
            producer_epoch=who[1],
            base_sequence=sequence,
        )
    header = BatchHeader(
        record_count=count,
        first_timestamp_ms=0,
        max_timestamp_ms=0,
        uncompressed_bytes=len(text),
        crc=0,
        flags=BatchFlags.TRANSACTIONAL,
        producer_id=who[0],
        producer_epoch=who[1],
        base_sequence=sequence,
    )
    return sealed(header, text.encode())


class SimTransactions:
    """The transactional producers of a history, and their faults."""

    def __init__(self, world: World, *, transactors: int | None = None) -> None:
        """`transactors`: at most this many; None: two or more."""
        self.world = world
        self.transactors: list[Transactor] = []
        self._hire(transactors or 4)
        self._pace_ms = world.scheduler.between(40, 250)
        self._between = world.scheduler.random.choice((0.0, 0.02, 0.1))

    def _hire(self, most: int) -> None:
        chance = self.world.scheduler.random
        shared = chance.random() < 0.4
        for number in range(1, min(chance.choice((2, 3, 4)), most) + 1):
            name = "shared" if shared and number <= 2 else f"id-{number}"
            self.transactors.append(Transactor(self.world, number, name))

    def start(self) -> None:
        """They start one after another."""
        scheduler = self.world.scheduler
        for transactor in self.transactors:
            scheduler.after(scheduler.between(0, 60), transactor.start)
        scheduler.at_pace(scheduler.random, self._pace_ms, self._strike)

    def strikes_here(self) -> bool:
        """Whether a coordinator dies between a decision and its Ends."""
        return self.world.scheduler.chance(self._between)

    def _strike(self) -> None:
        scheduler, chance = self.world.scheduler, self.world.scheduler.random
        if not self.world.chaotic:
            return
        scheduler.at_pace(scheduler.random, self._pace_ms, self._strike)
        if chance.random() < 0.6:
            self._freeze_one()
        else:
            self.kill(self.world.find_leader(TRANSACTIONS_KEY)[0])

    def _freeze_one(self) -> None:
        transactor = self.world.scheduler.random.choice(self.transactors)
        transactor.freeze(transactor._timeout_ms * self.world.scheduler.between(0.3, 2))

    def kill(self, broker: SimBroker) -> None:
        """Kills a broker, and restarts it after a while."""
        if broker.up:
            broker.kill(power=False)
            delay_ms = self.world.scheduler.random.choice((5, 60, 350))
            self.world.scheduler.after(delay_ms, self._start_broker, broker, broker.incarnation)

    def _start_broker(self, broker: SimBroker, incarnation: int) -> None:
        if not broker.up and broker.incarnation == incarnation:
            broker.start()

    def abandon(self) -> None:
        """Busy producers die for good: now only a timeout ends their transactions."""
        for transactor in self.transactors:
            if not transactor.idle:
                transactor._die()

    def unsettled(self) -> str:
        """Why transactions are not finished yet; "" = nothing is open, all participants are
        notified."""
        world = self.world
        if world.spark is not None and world.spark.unsettled():
            return world.spark.unsettled()
        waiting = [one.name for one in self.transactors if not one.idle]
        if waiting:
            return f"transactional producers {waiting} wait"
        hosts = [broker.transactions for broker in self.world.brokers.values()]
        current = [one.current for one in hosts if one is not None]
        live = [one for one in current if one is not None and one.loaded and one.closed is None]
        if len(live) != 1 or not live[0].quiet:
            return f"coordinators are {[str(one) for one in live]}"
        census = live[0].machine.census
        if census.open or census.finishing:
            return f"transactions are unsettled: {census}"
        return self.world.transaction_checks.unsettled()

    def check_end(self, readers: list[CommittedReader]) -> None:
        """What was read is what was decided."""
        self.world.transaction_checks.check_end(readers, self.transactors)
        if self.world.spark is not None:
            self.world.spark.check_end(readers)
