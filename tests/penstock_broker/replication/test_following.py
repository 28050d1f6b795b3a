"""What a follower takes from its leader."""

import dataclasses

import pytest
from support.wire import make_batch

from penstock.core.batch import Batch
from penstock.core.replication.contract_follower import (
    SendAck,
    SendEpochQuery,
    SendFollowStart,
    SendFollowStop,
)
from penstock.core.types import BrokerId, LeaderEpoch, Offset, ReplicaKey, TopicId
from penstock.errors import ClusterError, ErrorCode
from penstock.rpc.batches import batch_to_wire
from penstock_broker.replication.following import FollowerOutbox, checked_batch

KEY = ReplicaKey(TopicId("id"), 3)
LEADER, EPOCH = BrokerId(1), LeaderEpoch(2)


def test_a_batch_whose_crc_does_not_fit_never_reaches_a_machine() -> None:
    batch = make_batch([b"abc"])
    assert checked_batch("t/0", batch_to_wire(batch)) == batch
    damaged = Batch(batch.header, batch.payload[:-1] + b"\xee")
    relabelled = Batch(dataclasses.replace(batch.header, record_count=7), batch.payload)
    for lie in (damaged, relabelled):
        with pytest.raises(ClusterError) as refused:
            checked_batch("t/0", batch_to_wire(lie))
        assert refused.value.code is ErrorCode.DATA_CORRUPTED


async def test_acks_of_one_turn_leave_together_and_only_the_newest() -> None:
    outbox = FollowerOutbox()
    for end in (1, 2, 3):
        outbox.put(KEY, SendAck(LEADER, EPOCH, Offset(end), Offset(0)))
    outbox.put(ReplicaKey(TopicId("id"), 4), SendAck(LEADER, EPOCH, Offset(9), Offset(9)))
    message = await outbox.take()
    assert message is not None
    assert [(ack.partition, ack.written_end) for ack in message.acks] == [(3, 3), (4, 9)]


async def test_a_new_start_voids_older_acks_and_a_stop_voids_all() -> None:
    outbox = FollowerOutbox()
    outbox.put(KEY, SendAck(LEADER, EPOCH, Offset(5), Offset(5)))
    outbox.put(KEY, SendEpochQuery(LEADER, EPOCH, LeaderEpoch(1)))
    outbox.put(KEY, SendFollowStart(LEADER, EPOCH, Offset(4)))
    message = await outbox.take()
    assert message is not None
    assert (len(message.epoch_queries), len(message.starts), len(message.acks)) == (1, 1, 0)
    outbox.put(KEY, SendFollowStart(LEADER, EPOCH, Offset(4)))
    outbox.put(KEY, SendFollowStop(LEADER))
    message = await outbox.take()
    assert message is not None
    assert (len(message.stops), len(message.starts)) == (1, 0)
