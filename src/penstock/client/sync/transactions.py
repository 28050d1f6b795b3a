"""The sync admin's calls about transactions: `admin.transactions`, driven from the loop thread."""

from collections.abc import Iterable

from penstock.client.admin.admin import AsyncAdmin
from penstock.client.admin.transaction_model import (
    BlockingTransaction,
    LedgerListing,
    PartitionTransactions,
    TransactionDescription,
    TransactionListing,
    TransactionState,
)
from penstock.client.sync.loop_thread import LoopThread
from penstock.core.types import TopicPartition


class SyncTransactionAdministration:
    """The part of Admin that is about transactions; see TransactionAdministration."""

    _loop: LoopThread
    _core: AsyncAdmin

    def list_transactions(
        self,
        states: Iterable[TransactionState] = (),
        *,
        older_than_ms: int = 0,
        producer_id: int = 0,
    ) -> list[TransactionListing]:
        """Of the whole cluster, by id and branch."""
        return self._loop.run(
            self._core.list_transactions(
                states, older_than_ms=older_than_ms, producer_id=producer_id
            )
        )

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """Owner, participants, and how the last ones ended."""
        return self._loop.run(self._core.describe_transaction(transactional_id))

    def abort_transaction(
        self, transactional_id: str, *, producer_epoch: int = -1, reason: str = ""
    ) -> int:
        """Ends what is open of it; how many transactions that were."""
        return self._loop.run(
            self._core.abort_transaction(
                transactional_id, producer_epoch=producer_epoch, reason=reason
            )
        )

    def partition_transactions(self, where: TopicPartition) -> PartitionTransactions:
        """What is open in a partition, as its leader has it."""
        return self._loop.run(self._core.partition_transactions(where))

    def blocking_transactions(self, *, older_than_ms: int = 0) -> list[BlockingTransaction]:
        """What holds up read_committed readers, by partition."""
        return self._loop.run(self._core.blocking_transactions(older_than_ms=older_than_ms))

    def list_ledgers(self) -> list[LedgerListing]:
        """What application ids have committed last, by id."""
        return self._loop.run(self._core.list_ledgers())

    def forget_ledger(self, application_id: str) -> bool:
        """Its next batch is taken as the first; False = there was none."""
        return self._loop.run(self._core.forget_ledger(application_id))
