"""The times and sizes of transactions, and the partitions of their coordinators.

A transactional id belongs to one partition of the internal topic: `coordinator_partition`. The
coordinator is that partition's leader, so an id moves with a leadership and never splits.
"""

from dataclasses import dataclass
from typing import Final

from penstock.core.limits import TRANSACTIONAL_ID_MAX_BYTES
from penstock.core.partitioner import partition_for_key
from penstock.errors import ClusterError, ErrorCode

TRANSACTIONS_TOPIC: Final = "__transactions"
TRANSACTIONS_PARTITIONS: Final = 16
TRANSACTIONS_REPLICATION: Final = 3
"""Or the number of live brokers when the topic is created, if lower."""


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """How a coordinator behaves. All times in ms, all limits inclusive.

    park_ms: how long a join waits until its participant has finished the last transaction; one that
        waits longer is refused with CONCURRENT_TRANSACTIONS.
    retry_min_ms, retry_max_ms: the first and the longest pause before an End is sent again.
    finished_flush_ms: what participants have stored is written at most this late: with the next
        record; if that is lost, an End is only repeated.
    gone_grace_ms: a partition is given up without a marker once its topic was missing from the
        image for this long: briefly missing metadata must not cost markers (I22).
    ids_max, open_max, state_bytes_max: per partition of the topic.
    id_bytes_max: of one id's branches, which one decision writes in one append.
    topic_partitions: of the internal topic, when it is created.
    rows_kept, superseded_max: per ledger: batches whose rows are known, runs that are refused; the
        second also per id: instances that are refused.
    """

    default_timeout_ms: int = 60_000
    max_timeout_ms: int = 900_000
    park_ms: int = 5_000
    retry_min_ms: int = 100
    retry_max_ms: int = 1_000
    finished_flush_ms: int = 1_000
    visible_wait_max_ms: int = 60_000
    id_expiration_ms: int = 604_800_000
    ledger_expiration_ms: int = 7_776_000_000
    gone_grace_ms: int = 600_000
    sweep_interval_ms: int = 60_000
    ids_max: int = 100_000
    open_max: int = 20_000
    state_bytes_max: int = 64 * 1024 * 1024
    id_bytes_max: int = 4 * 1024 * 1024
    participants_max: int = 2_000
    branches_max: int = 4_096
    rows_kept: int = 20
    superseded_max: int = 5
    topic_partitions: int = TRANSACTIONS_PARTITIONS


def coordinator_partition(transactional_id: str, partitions: int) -> int:
    """The partition of `__transactions` that an id belongs to, 0 <= it < partitions."""
    return partition_for_key(transactional_id.encode(), partitions)


def check_transactional_id(transactional_id: str) -> None:
    """Raises ClusterError(INVALID_REQUEST). Any printable text is an id, as in Kafka."""
    size = len(transactional_id.encode())
    if not 1 <= size <= TRANSACTIONAL_ID_MAX_BYTES or not transactional_id.isprintable():
        seen = transactional_id if len(transactional_id) <= 40 else transactional_id[:40] + "…"
        raise ClusterError(
            f"transactional id {seen!r} has {size} bytes; it must have 1 to "
            f"{TRANSACTIONAL_ID_MAX_BYTES}, all characters printable",
            ErrorCode.INVALID_REQUEST,
        )
