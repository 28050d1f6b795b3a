"""The admin's data about transactions, plain and frozen, from `transaction_wire.py`.

Times are milliseconds since 1970 UTC, durations are milliseconds; None = there is none.
"""

from dataclasses import dataclass
from enum import Enum

from penstock.core.types import TopicPartition


class TransactionState(Enum):
    """State of a producer's current epoch: OPEN once a partition or a group has joined."""

    IDLE = "idle"
    OPEN = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionListing:
    """One transactional id, or one branch of an application id.

    Attributes:
        branch: 0 except for branches.
        open_ms: How long it has been open; None = it is not.
        finishing: How many partitions and groups have not stored yet how it ended.
        finishing_ms: How long the oldest of them has been due; None = none is.
    """

    transactional_id: str
    branch: int
    state: TransactionState
    producer_id: int
    producer_epoch: int
    open_ms: int | None
    finishing: int
    finishing_ms: int | None
    client_id: str
    client_host: str


@dataclass(frozen=True, slots=True)
class Finishing:
    """A participant that has not stored yet how a transaction ended: `topic/partition` or `group
    NAME`."""

    participant: str
    producer_epoch: int
    commit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionBranch:
    """One producer of a transactional id; only application ids have several.

    Attributes:
        started_ms: Since when it has been open; None = it is not.
        timeout_ms: Timeout of the open or last transaction: it is aborted when it has been open for
            this long.
        joined: Participants of the open transaction: `topic/partition` or `group NAME`.
        last_outcome: "committed" or "aborted"; "" = none is known.
        last_reason: Who ended it: "producer", "timeout", "operator", "fenced", …; "" = unknown.
        run: With batch, task and attempt: of application ids. "" otherwise.
    """

    branch: int
    state: TransactionState
    producer_id: int
    producer_epoch: int
    started_ms: int | None
    timeout_ms: int
    joined: tuple[str, ...]
    finishing: tuple[Finishing, ...]
    last_outcome: str
    last_reason: str
    run: str
    batch: int
    task: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """A transactional id, its owner and its transactions.

    Attributes:
        instance_id: UUID of the producer object that has the id.
        timeout_ms: Of branch 0; 0 = no producer has taken the id, as with most application ids.
        used_ms: Last time it was taken over, decided on, or given a branch.
        coordinator: Broker id.
        partition: Of the internal topic, whose leader coordinates.
    """

    transactional_id: str
    instance_id: str
    client_id: str
    client_host: str
    timeout_ms: int
    used_ms: int
    coordinator: int
    partition: int
    branches: tuple[TransactionBranch, ...]


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """As the log of a partition has it. `last_ms`: of its last batch; None = not known."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    last_ms: int | None


@dataclass(frozen=True, slots=True)
class PartitionTransactions:
    """Up to `last_stable_offset` read_committed readers may read; `open` by first offset."""

    where: TopicPartition
    last_stable_offset: int
    high_watermark: int
    open: tuple[OpenTransaction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockingTransaction:
    """The transaction that keeps back a partition's last stable offset, and so all read_committed
    readers there.

    Attributes:
        last_ms: Time of its last batch there; None = not known.
        owner: As its coordinator has it; None = no coordinator knows it. Its epoch is later if the
            transaction has ended but this partition has not stored that yet.
    """

    where: TopicPartition
    last_stable_offset: int
    high_watermark: int
    producer_id: int
    producer_epoch: int
    last_ms: int | None
    owner: TransactionListing | None

    @property
    def is_decided(self) -> bool:
        """It was committed or aborted; the partition has not stored the outcome yet."""
        return self.owner is not None and self.owner.producer_epoch != self.producer_epoch

    @property
    def age_ms(self) -> int | None:
        """How long it has been open, or decided and not stored; None: no coordinator knows it."""
        if self.owner is None:
            return None
        return self.owner.finishing_ms if self.is_decided else self.owner.open_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerListing:
    """The last batch that an application id has committed, when, and by which run."""

    application_id: str
    checkpoint: str
    batch: int
    rows: int
    time_ms: int
    run: str
