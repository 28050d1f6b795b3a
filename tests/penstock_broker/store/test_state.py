"""The small records on disk: what older brokers wrote is read, and what they can read is kept."""

import msgspec
import pytest

from penstock.core.aborted import AbortedTransaction
from penstock.core.replication.contract import ProducerEntry, SequencedBatch
from penstock.core.types import Offset, ProducerId
from penstock.errors import ClusterError, ErrorCode
from penstock_broker.store import state

PLAIN = ProducerEntry(
    producer_id=ProducerId(7),
    producer_epoch=2,
    batches=(SequencedBatch(0, 4, Offset(10)), SequencedBatch(5, 5, Offset(15))),
    last_timestamp_ms=1_000,
)
OPEN = ProducerEntry(
    producer_id=ProducerId(1 << 62),
    producer_epoch=3,
    batches=(SequencedBatch(0, 0, Offset(20)),),
    last_timestamp_ms=2_000,
    open_offset=Offset(20),
)
ENDED = ProducerEntry(
    producer_id=ProducerId(1 << 62 | 1),
    producer_epoch=4,
    batches=(),
    last_timestamp_ms=3_000,
    marker_offset=Offset(30),
    ended_first_offset=Offset(25),
)
ENDED_NOTHING = ProducerEntry(
    producer_id=ProducerId(1 << 62 | 2),
    producer_epoch=1,
    batches=(),
    last_timestamp_ms=3_000,
    marker_offset=Offset(31),
)
VERSION_1 = bytes((1,)) + msgspec.msgpack.encode([(7, 2, 1_000, [(0, 4, 10), (5, 5, 15)])])


def test_producers_without_transactions_are_written_as_before_transactions() -> None:
    assert state.encode_producers([PLAIN]) == VERSION_1, "brokers before can read it"
    assert state.decode_producers(VERSION_1) == [PLAIN]
    assert state.encode_producers([])[:1] == b"\x01"


@pytest.mark.parametrize("one", [OPEN, ENDED, ENDED_NOTHING])
def test_a_producer_that_has_used_transactions_makes_it_version_2(one: ProducerEntry) -> None:
    stored = state.encode_producers([PLAIN, one])
    assert stored[:1] == b"\x02"
    assert state.decode_producers(stored) == [PLAIN, one]


@pytest.mark.parametrize("stored", [b"", b"\x03\x90", VERSION_1[:-1], b"\x02" + VERSION_1[1:]])
def test_a_snapshot_that_cannot_be_understood_is_not_guessed_at(stored: bytes) -> None:
    with pytest.raises(ClusterError) as refused:
        state.decode_producers(stored)
    assert refused.value.code is ErrorCode.DATA_CORRUPTED


def test_an_aborted_transaction_comes_back_with_its_key() -> None:
    one = AbortedTransaction(
        marker_offset=Offset(2**40),
        first_offset=Offset(2**40 - 7),
        producer_id=ProducerId(2**62 + 5),
        producer_epoch=2**31 - 2,
        stable_offset=Offset(2**40 - 3),
    )
    stored = state.encode_aborted(one)
    assert state.decode_aborted(one.marker_offset, stored) == one
    with pytest.raises(ClusterError):
        state.decode_aborted(one.marker_offset, stored[:-1])
