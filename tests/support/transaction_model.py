"""The protocol's rules of transactions, on one page: a coordinator and partitions without time.

For tests of clients, which see them through a scheduler (`transaction/test_model_cluster.py`) or
through a real gRPC server (`transaction_double.py`). What is left out: replicas, parked joins,
groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from penstock.client.transaction.contract import EndAnswered
from penstock.core.types import ProducerId, ProducerIdentity
from penstock.errors import ClusterError, ErrorCode

PRODUCER: Final = ProducerId(1 << 62)
Value = TypeVar("Value")


def refused(code: ErrorCode) -> ClusterError:
    return ClusterError(f"scripted {code.name}", code)


@dataclass
class Branch:
    """The coordinator's view of one transactional id: `outcomes` is its log, by epoch."""

    epoch: int = 0
    owner: object = None
    is_open: bool = False
    outcomes: dict[int, bool] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)

    def decide(self, *, commit: bool, reason: str) -> None:
        """The decision; the epoch is the next transaction's from now on."""
        self.outcomes[self.epoch] = commit
        self.reasons[self.epoch] = reason
        self.epoch += 1
        self.is_open = False

    def init(self, instance: object) -> int:
        """The epoch; another instance than before takes over."""
        if instance != self.owner:
            self.owner = instance
            self.decide(commit=False, reason="fenced")
        return self.epoch

    def join(self, epoch: int) -> None:
        """A partition takes part. Raises ClusterError."""
        if epoch != self.epoch:
            by_others = self.reasons.get(epoch) == "timeout"
            code = ErrorCode.TRANSACTION_ABORTED if by_others else ErrorCode.PRODUCER_FENCED
            raise refused(code)
        self.is_open = True

    def end(self, epoch: int, *, commit: bool) -> EndAnswered:
        """EndTransaction. Raises ClusterError."""
        error = None
        if epoch == self.epoch:
            self.decide(commit=commit, reason="producer")
        elif epoch != self.epoch - 1 or self.reasons[epoch] == "fenced":
            raise refused(ErrorCode.PRODUCER_FENCED)
        elif self.outcomes[epoch] != commit:
            assert self.reasons[epoch] == "timeout", "an outcome is asked for once"
            error = refused(ErrorCode.TRANSACTION_ABORTED)
        return EndAnswered(ProducerIdentity(PRODUCER, self.epoch), error, visible=True)


@dataclass
class Partition(Generic[Value]):
    """A leader. `heard`: it has the markers of all transactions below this epoch. `log`: values by
    epoch and base sequence."""

    branch: Branch
    heard: int = 0
    log: dict[tuple[int, int], Sequence[Value]] = field(default_factory=dict)
    joined: set[int] = field(default_factory=set)

    def append(self, epoch: int, sequence: int, values: Sequence[Value]) -> None:
        """Once per epoch and sequence. Raises ClusterError; nothing was appended then."""
        if epoch < self.heard:
            raise refused(ErrorCode.PRODUCER_FENCED)
        if (epoch, sequence) in self.log:
            return
        if sequence != sum(len(some) for (of, _), some in self.log.items() if of == epoch):
            raise refused(ErrorCode.OUT_OF_ORDER_SEQUENCE)
        if epoch not in self.joined:
            if self.joined and max(self.joined) >= self.heard:
                raise refused(ErrorCode.CONCURRENT_TRANSACTIONS)
            self.branch.join(epoch)
            self.joined.add(epoch)
        self.log[epoch, sequence] = values

    def hear(self) -> None:
        """The markers of all that was decided."""
        self.heard = self.branch.epoch

    def visible(self) -> list[Value]:
        """What a read_committed reader sees in the end."""
        return [
            value
            for (epoch, _), values in self.log.items()
            if self.branch.outcomes.get(epoch)
            for value in values
        ]
