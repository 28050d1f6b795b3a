"""Tables of transactions: the oldest first, which of them are odd, and what is left out."""

from dataclasses import replace

import pytest

from penstock.client import (
    BlockingTransaction,
    TopicPartition,
    TransactionListing,
    TransactionState,
)
from penstock.views.transactions import LONG_MS, blocking_table, open_table

IDLE = TransactionListing(
    transactional_id="pay-0", branch=0, state=TransactionState.IDLE, producer_id=7,
    producer_epoch=3, open_ms=None, finishing=0, finishing_ms=None, client_id="billing",
    client_host="10.0.0.7",
)  # fmt: skip


def opened(name: str, open_ms: int) -> TransactionListing:
    return replace(IDLE, transactional_id=name, state=TransactionState.OPEN, open_ms=open_ms)


def test_the_oldest_open_transaction_comes_first_with_its_owner() -> None:
    ending = replace(IDLE, transactional_id="ending", finishing=2, finishing_ms=20_000)
    listed = [opened("young", 500), IDLE, opened("old", LONG_MS + 1), ending, opened("mid", 9_000)]
    table = open_table(listed, 10)
    assert [row["id"] for row in table.to_rows()] == ["old", "ending", "mid", "young"]
    assert table.note == "1 transactional id without an open transaction"
    assert table.to_rows()[0] == {
        "id": "old", "open_s": 60.001, "finishing": 0, "client": "billing", "host": "10.0.0.7",
        "producer": 7, "epoch": 3,
    }  # fmt: skip
    ages = {row[0].text: (row[1].text, row[1].tone) for row in table.rows}
    assert ages == {
        "old": ("60s", "odd"), "ending": ("–", "dim"), "mid": ("9.0s", ""), "young": ("0.5s", ""),
    }  # fmt: skip


def test_a_branch_is_named_with_its_application() -> None:
    (row,) = open_table([replace(opened("pay", 1), branch=4)], 10).to_rows()
    assert row["id"] == "pay (branch 4)"


def test_of_many_only_the_oldest_are_shown() -> None:
    table = open_table([opened(f"t{age}", age) for age in range(5)], 2)
    assert [row["id"] for row in table.to_rows()] == ["t4", "t3"]
    assert table.note == "the oldest 2 of 5"


@pytest.mark.parametrize(
    ("owner", "said"),
    [
        (opened("pay-0", 9_000), ("pay-0", "9.0s", "open")),
        (
            replace(IDLE, producer_epoch=4, finishing=1, finishing_ms=3_000),
            ("pay-0", "3.0s", "decided, not stored yet"),
        ),
        (None, ("–", "–", "no coordinator knows it")),
    ],
    ids=["open", "decided", "unknown"],
)
def test_what_blocks_readers_says_whose_it_is_and_why(
    owner: TransactionListing | None, said: tuple[str, str, str]
) -> None:
    one = BlockingTransaction(
        where=TopicPartition("paid", 1), last_stable_offset=40, high_watermark=52,
        producer_id=7, producer_epoch=3, last_ms=None, owner=owner,
    )  # fmt: skip
    (row,) = blocking_table([one], 10).rows
    where, name, age, behind, stable, state = row
    assert (where.text, where.href) == ("paid/1", "/topics/paid")
    assert (behind.text, stable.text) == ("12", "40")
    assert (name.text, age.text, state.text) == said
