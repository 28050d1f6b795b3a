"""Bytes on disk: keys that sort as numbers, values that come back, versions that are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.batch import Batch, BatchHeader
from penstock.core.replication.contract import Checkpoint, EpochStart, ProducerEntry, SequencedBatch
from penstock.core.types import LeaderEpoch, Offset, ProducerId, ReplicaKey, TopicId
from penstock.errors import ClusterError, ErrorCode
from penstock_broker.store import layout, state
from penstock_broker.store.interface import Slot

slots = st.integers(0, 2**32 - 1).map(Slot)
offsets = st.integers(0, 2**63 - 1).map(Offset)
epochs = st.integers(-1, 2**31 - 1).map(LeaderEpoch)
producers = st.builds(
    ProducerEntry,
    producer_id=st.integers(0, 2**63 - 1).map(ProducerId),
    producer_epoch=st.integers(0, 2**31 - 1),
    batches=st.lists(
        st.builds(
            SequencedBatch,
            base_sequence=st.integers(0, 2**31 - 1),
            last_sequence=st.integers(0, 2**31 - 1),
            base_offset=offsets,
        ),
        max_size=5,
    ).map(tuple),
    last_timestamp_ms=st.integers(-(2**63), 2**63 - 1),
)
checkpoints = st.builds(
    Checkpoint,
    leader_epoch=epochs,
    high_watermark=offsets,
    log_start_offset=offsets,
    epochs=st.lists(st.builds(EpochStart, epoch=epochs, start_offset=offsets)).map(tuple),
)


@pytest.mark.parametrize("key", [layout.batch_key, layout.index_key, layout.producers_key])
@given(one=st.tuples(slots, offsets), other=st.tuples(slots, offsets))
def test_keys_sort_by_slot_and_offset(
    key: object, one: tuple[Slot, Offset], other: tuple[Slot, Offset]
) -> None:
    assert callable(key)
    assert (key(*one) < key(*other)) == (one < other)


@given(slot=slots, offset=offsets)
def test_a_slots_prefix_covers_its_keys_only(slot: Slot, offset: Offset) -> None:
    assert layout.index_key(slot, offset).startswith(layout.index_prefix(slot))
    assert layout.producers_key(slot, offset).startswith(layout.producers_prefix(slot))
    assert layout.offset_of(layout.producers_key(slot, offset)) == offset


@given(topic=st.text(min_size=1), partition=st.integers(0, 2**32 - 1))
def test_replica_keys_come_back(topic: str, partition: int) -> None:
    key = ReplicaKey(TopicId(topic), partition)
    assert layout.replica_of(layout.replica_key(key)) == key


def test_index_entries_come_back() -> None:
    header = BatchHeader(3, 5, 9, 100, 12345, base_offset=Offset(77), append_time_ms=8)
    entry = layout.next_entry(Batch(header, b"x" * 28), 1000, 50)
    assert entry.next_position == 1100
    assert entry.running_max_ms == 50
    assert entry.next_offset == 80
    assert entry.header == header
    key = layout.index_key(Slot(3), 77)
    assert layout.unpack_entry(key, layout.pack_entry(entry)) == entry
    with pytest.raises(ClusterError, match="95 bytes"):
        layout.unpack_entry(key, layout.pack_entry(entry)[:-1])


@given(checkpoint=checkpoints)
def test_checkpoints_come_back(checkpoint: Checkpoint) -> None:
    assert state.decode_checkpoint(state.encode_checkpoint(checkpoint)) == checkpoint


@given(entries=st.lists(producers, max_size=5))
def test_producer_snapshots_come_back(entries: list[ProducerEntry]) -> None:
    assert state.decode_producers(state.encode_producers(entries)) == entries


@pytest.mark.parametrize("stored", [b"", b"\x02\x90", b"\x01", b"\x01\xc1", b"\x01\x90"])
def test_state_of_another_version_or_shape_is_refused(stored: bytes) -> None:
    with pytest.raises(ClusterError) as caught:
        state.decode_checkpoint(stored)
    assert caught.value.code is ErrorCode.DATA_CORRUPTED


def test_the_newest_safe_snapshot_and_all_behind_it_stay() -> None:
    as_of = [Offset(n) for n in (10, 20, 30, 40)]
    assert state.outdated_snapshots(as_of, Offset(35)) == [10, 20]
    assert state.outdated_snapshots(as_of, Offset(5)) == []
    assert state.outdated_snapshots(as_of, Offset(99)) == [10, 20, 30]
