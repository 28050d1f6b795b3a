"""What takes the place of a batch that nobody has, and when it may."""

from dataclasses import replace

import pytest

from penstock.core.batch import (
    Batch,
    BatchFlags,
    build_marker,
    pack_batch,
    unpack_batch,
)
from penstock.core.encode import encode_columns
from penstock.core.records import build_batch, check_batch, decode_batch
from penstock.core.replication.losses import (
    check_nobody_sound_may_lead,
    chosen,
    emptied,
    holders,
    says_it_lacks,
    span,
    without_payload,
)
from penstock.core.types import BrokerId, LeaderEpoch, Offset, PartitionState, ProducerId
from penstock.errors import ClusterError, ErrorCode


def batch(offset: int, count: int = 10) -> Batch:
    columns = encode_columns([b"v"] * count, timestamps_ms=[70 + n for n in range(count)])
    made = build_batch(
        columns,
        producer_id=ProducerId(7),
        producer_epoch=2,
        base_sequence=40,
        flags=BatchFlags.TRANSACTIONAL,
    )
    return made.stamped(Offset(offset), LeaderEpoch(3), 99)


def ids(*brokers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, brokers))


def state(leader: int = 0, **more: tuple[BrokerId, ...]) -> PartitionState:
    known = {"replicas": ids(0, 1, 2), "isr": ids(0), **more}
    return PartitionState(leader=BrokerId(leader), leader_epoch=LeaderEpoch(3), version=5, **known)


def test_an_emptied_batch_says_all_that_its_header_said_and_has_no_record() -> None:
    lost = batch(100)
    empty = emptied(lost.header)
    check_batch(empty, allow_internal_flags=True)
    assert unpack_batch(pack_batch(empty)) == empty
    assert decode_batch(empty).record_count == 0
    same = replace(
        empty.header,
        crc=lost.header.crc,
        first_timestamp_ms=lost.header.first_timestamp_ms,
        codec=lost.header.codec,
        uncompressed_bytes=lost.header.uncompressed_bytes,
        flags=lost.header.flags,
    )
    assert same == lost.header
    assert empty.header.flags == BatchFlags.TRANSACTIONAL | BatchFlags.COMPACTED
    assert empty == emptied(lost.header), "everybody makes the same one"


def test_what_a_batch_without_payload_was_is_known_from_its_header() -> None:
    marker = build_marker(ProducerId(7), 2, commit=True, timestamp_ms=5).stamped(
        Offset(9), LeaderEpoch(3), 0
    )
    assert without_payload(marker.header) == marker
    assert without_payload(batch(100).header) is None


def test_lost_batches_are_given_up_as_a_whole() -> None:
    lost = [batch(100).header, batch(120).header, batch(150).header]
    assert [span(one) for one in lost] == ["100-109", "120-129", "150-159"]
    assert chosen(lost, Offset(100), Offset(109)) == (lost[0],)
    assert chosen(lost, Offset(90), Offset(149)) == tuple(lost[:2])
    assert chosen(lost, Offset(110), Offset(119)) == ()
    for first, last in ((101, 109), (100, 108), (105, 105), (0, 155)):
        with pytest.raises(ClusterError, match="--offsets 1") as caught:
            chosen(lost, Offset(first), Offset(last))
        assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_everybody_who_may_have_stored_it_is_a_holder() -> None:
    moving = state(adding=ids(3), dropping=ids(4, 1))
    assert holders(moving, BrokerId(0)) == ids(1, 2, 3, 4)


def test_nothing_is_lost_while_somebody_sound_may_lead() -> None:
    check_nobody_sound_may_lead(state(), BrokerId(0))
    check_nobody_sound_may_lead(state(isr=ids(0, 1), damaged=ids(1)), BrokerId(0))
    with pytest.raises(ClusterError, match="broker 1 has a replica"):
        check_nobody_sound_may_lead(state(isr=ids(0, 1)), BrokerId(0))
    with pytest.raises(ClusterError, match="broker 2 leads"):
        check_nobody_sound_may_lead(state(leader=2), BrokerId(0))


def test_who_may_have_compacted_the_batch_does_not_lack_its_records() -> None:
    other = state(damaged=ids(0, 1))
    assert says_it_lacks(other, BrokerId(1), ErrorCode.DATA_CORRUPTED)
    assert not says_it_lacks(other, BrokerId(2), ErrorCode.DATA_CORRUPTED)
    assert says_it_lacks(other, BrokerId(2), ErrorCode.OFFSET_OUT_OF_RANGE)
    assert not says_it_lacks(other, BrokerId(1), ErrorCode.UNKNOWN_PARTITION)
