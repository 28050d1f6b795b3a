"""Transfers between accounts, for the recorded workload: money must neither appear nor vanish.

    begin ─▶ account 2: -30 │ account 5: +30, on two partitions ─▶ commit, or abort now and then

An account is a key that all producers write to; it starts at 0 and may be overdrawn. Each producer
numbers its entries in each account from 0, and reuses the number of an aborted entry for the next
one. So the records that read_committed readers get add up to 0 and have no gap in their numbers;
the records alone prove it (`check_bank.py`).
"""

from collections.abc import Callable, Mapping
from typing import Final

from penstock.client import Transaction
from penstock.core.partitioner import partition_for_key
from penstock.errors import MisuseError
from penstock.verify.history import HistoryWriter
from penstock.verify.records import HEAD_WORDS, WORD_BYTES
from penstock.verify.transactional import Sent, TransactionalConfig, TransactionalProducer

BANK_BODY: Final = ("x", "a", "k")
"""Transfer, amount, number of the entry."""
BANK_RECORD_BYTES_MIN: Final = (HEAD_WORDS + len(BANK_BODY) + 1) * WORD_BYTES
ACCOUNTS_MIN: Final = 2
AMOUNT_MAX: Final = 100


def check_bank(accounts: int, record_bytes: int) -> None:
    """Raises MisuseError if there are too few accounts, or no room for an entry."""
    if accounts < ACCOUNTS_MIN:
        raise MisuseError(f"a bank needs {ACCOUNTS_MIN} accounts, not {accounts}")
    if record_bytes < BANK_RECORD_BYTES_MIN:
        raise MisuseError(
            f"record bytes {record_bytes}: an entry of the bank needs {BANK_RECORD_BYTES_MIN}"
        )


class BankProducer(TransactionalProducer):
    """Each of its transactions is a transfer; each of its streams, its entries in one account."""

    def __init__(
        self,
        config: TransactionalConfig,
        index: int,
        keys: Mapping[int, bytes],
        history: HistoryWriter,
        now_ms: Callable[[], float],
    ) -> None:
        super().__init__(config, index, keys, history, now_ms)
        self._numbers = dict.fromkeys(keys, 0)
        self._entered: list[int] = []

    def _fill(self, transaction: Transaction) -> list[Sent]:
        self._entered = []
        debtor, creditor = self._two_accounts()
        amount = self._random.randint(1, AMOUNT_MAX)
        debit = self._enter(transaction, debtor, -amount)
        return [debit, self._enter(transaction, creditor, amount)]

    def _two_accounts(self) -> tuple[int, int]:
        """On two partitions, if the topic has two."""
        streams, count = list(self._keys), self._config.partitions
        debtor = self._random.choice(streams)
        where = {stream: partition_for_key(self._keys[stream], count) for stream in streams}
        others = [stream for stream in streams if where[stream] != where[debtor]]
        others = others or [stream for stream in streams if stream != debtor]
        return debtor, self._random.choice(others)

    def _enter(self, transaction: Transaction, stream: int, amount: int) -> Sent:
        number = self._numbers[stream]
        self._entered.append(stream)
        body = (self._number, amount, number)
        return self._send(transaction, stream, body, a=amount, k=number)

    def _ended(self, how: str) -> None:
        super()._ended(how)
        if how != "aborted":  # the outcome is unknown: nothing else may use these numbers
            for stream in self._entered:
                self._numbers[stream] += 1
