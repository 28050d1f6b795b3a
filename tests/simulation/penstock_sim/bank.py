"""A bank: tellers move money between accounts, a debit and a credit in one transaction.

An account's records are all in one partition, so most transfers write to two. Whatever is aborted,
torn by a crash or repeated: the total over all accounts, computed from all records that readers of
committed records see, does not change (I15). One reader per partition sees a prefix with whole
transactions of that partition (`ledger`); the total is checked when all have read everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.client.transaction.machine import State
from penstock.core.types import ReplicaKey
from penstock.errors import PenstockError
from penstock_sim.committed_reader import CommittedReader
from penstock_sim.ledger import FoldingReader, hops_of
from penstock_sim.producing import SimProducer
from penstock_sim.scheduler import RuleError
from penstock_sim.transactional import SimTransactions

if TYPE_CHECKING:
    from penstock_sim.world import World

_TELLER_NODE: Final = 850
_ACCOUNTS: Final = 6
_DIES_IN: Final = (40, 200, 1_000, 10_000)


class Teller(SimProducer):
    """A process that makes transfers, one transaction after another."""

    def __init__(self, world: World, number: int, transactional_id: str) -> None:
        chance = world.scheduler.random
        timeout_ms = chance.choice((120, 250, 400))
        node = _TELLER_NODE + number
        super().__init__(world, f"t{number}", node, transactional_id, timeout_ms)
        self.idle = True
        self.timeout_ms = timeout_ms
        self._pause_ms = chance.choice((2, 8, 25))

    def start(self) -> None:
        """Starts a new process."""
        self.open()
        self.idle = False
        self._steps_left = self.world.scheduler.random.choice(_DIES_IN)
        self._next(None)

    def _die(self) -> None:
        super()._die()
        self._restart_later()

    def _restart_later(self) -> None:
        self.idle = True
        if self.world.chaotic:
            delay_ms = self.world.scheduler.random.choice((1, 20, 80, 250))
            self.world.scheduler.after(delay_ms, self._restart, self._life)

    def _restart(self, life: int) -> None:
        if life == self._life and self.world.chaotic:
            self.start()

    def _next(self, _error: PenstockError | None) -> None:
        """The last transfer has ended, with or without an error."""
        if self.machine.state is State.FENCED:
            self._life += 1
            self._restart_later()
        elif self.machine.state is not State.READY:
            self.resolve(self._next)
        elif self.world.chaotic:
            delay_ms = self.world.scheduler.between(0.2, 2) * self._pause_ms
            self._later(delay_ms, self.begin, self._begun)
        else:
            self.idle = True

    def _begun(self, error: PenstockError | None) -> None:
        if error is not None:
            self._later(10, self._next, error)
            return
        chance = self.world.scheduler.random
        for number in range(chance.choice((1, 1, 2, 3))):
            self._transfer(number)
        stall_ms = 0.01 if chance.random() < 0.7 else chance.random() * self.timeout_ms
        self._later(stall_ms, self._finish)

    def _transfer(self, number: int) -> None:
        assert self.written is not None
        chance = self.world.scheduler.random
        debit, credit = chance.sample(range(_ACCOUNTS), 2)
        amount = chance.randrange(1, 100)
        for account, moved in ((debit, -amount), (credit, amount)):
            value = f"{self.written.name}|{number}|{account}|{moved}".encode()
            self.send(_partition(self.world, account), [(f"account-{account}".encode(), value)])

    def _finish(self) -> None:
        if self.machine.state is not State.OPEN or self.world.scheduler.chance(0.2):
            self.resolve(self._next)
        else:
            self.commit(self._next)


def _partition(world: World, account: int) -> ReplicaKey:
    return world.keys[account % len(world.keys)]


class Bank(SimTransactions):
    """The tellers of a history, instead of its other transactional producers."""

    def _hire(self, most: int) -> None:
        chance = self.world.scheduler.random
        shared = chance.random() < 0.3
        self.tellers: list[Teller] = []
        for number in range(1, min(chance.choice((1, 2, 3)), most) + 1):
            name = "bank" if shared else f"bank-{number}"
            self.tellers.append(Teller(self.world, number, name))

    def start(self) -> None:
        """Tellers start one after another."""
        super().start()
        scheduler = self.world.scheduler
        for teller in self.tellers:
            scheduler.after(scheduler.between(0, 60), teller.start)

    def _freeze_one(self) -> None:
        teller = self.world.scheduler.random.choice(self.tellers)
        teller.freeze(teller.timeout_ms * self.world.scheduler.between(0.3, 2))

    def unsettled(self) -> str:
        """Why the bank is not finished yet."""
        busy = [teller.name for teller in self.tellers if not teller.idle]
        return f"tellers {busy} are busy" if busy else super().unsettled()

    def check_end(self, readers: list[CommittedReader]) -> None:
        """The total over all accounts is 0; records that retention removed unread count too."""
        super().check_end(readers)
        if self.world.transaction_checks.void:
            return
        total = 0
        for reader in readers:
            if reader.key in self.world.keys and isinstance(reader, FoldingReader):
                total += sum(_moved(value) for _, value in reader.values)
                total += sum(_moved(value) for lost in reader.lost_of.values() for value in lost)
        if total:
            raise RuleError(f"I15: the bank has {total} more than it had")


def _moved(value: bytes) -> int:
    """The amount of a value; what pipes made of a transfer counts as 0."""
    return 0 if hops_of(value) else int(value.rpartition(b"|")[2])
