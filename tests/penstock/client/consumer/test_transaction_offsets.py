"""Offsets that are stored for a transaction while their partitions leave."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.client.config import ConsumerConfig
from penstock.client.consumer.assignment import Assignment
from penstock.client.consumer.fetch_state import FetchState
from penstock.client.consumer.transaction_offsets import Scope, TransactionOffsets
from penstock.client.group.model import OffsetAndMetadata
from penstock.core.limits import COMMIT_PARTITIONS_MAX
from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode

WHERE = TopicPartition("t", 0)
MEMBER = SimpleNamespace(member_id="m", member_epoch=6)
SCOPE = Scope("id", cast("Any", SimpleNamespace(producer_id=1, epoch=0)))


class Member:
    """The coordinator has not noticed that this member was away: its epoch stays."""

    def identity(self) -> Any:
        return MEMBER

    def catch_up(self) -> None:
        """Nothing is reported by another thread."""

    def fenced(self, code: ErrorCode) -> None:
        raise AssertionError(f"out of the group: {code}")


def new_state() -> FetchState:
    return FetchState(WHERE, "id-of-t")


@pytest.mark.parametrize("leaves", [False, True])
async def test_offsets_whose_partition_left_while_they_were_stored_must_not_commit(
    leaves: bool,
) -> None:
    """It is back with the same epoch, and begins where it was looked up to begin before."""
    assignment = Assignment()
    assignment.add(new_state())

    async def commit_within(request: Any, timeout_s: float) -> None:
        assert request.member_epoch == 6
        if leaves:
            assignment.remove(WHERE)
            assignment.add(new_state())

    coordinator = SimpleNamespace(group_id="g", commit_within=commit_within)
    offsets = TransactionOffsets(
        cast("Any", coordinator),
        ConsumerConfig(group_id="g"),
        assignment,
        cast("Any", Member()),
    )
    storing = offsets.store(SCOPE, {WHERE: OffsetAndMetadata(12)}, {})
    if not leaves:
        await storing
        return
    with pytest.raises(ClusterError, match="must not commit") as refused:
        await storing
    assert refused.value.code is ErrorCode.STALE_MEMBER_EPOCH


async def test_more_offsets_than_a_coordinator_takes_are_stored_in_parts() -> None:
    sizes = []

    async def commit_within(request: Any, timeout_s: float) -> None:
        assert request.transactional_id == "id"
        sizes.append(len(request.partitions))

    coordinator = SimpleNamespace(group_id="g", commit_within=commit_within)
    offsets = TransactionOffsets(
        cast("Any", coordinator),
        ConsumerConfig(group_id="g"),
        Assignment(),
        cast("Any", Member()),
    )
    many = [TopicPartition("t", number) for number in range(COMMIT_PARTITIONS_MAX + 1)]
    await offsets.store(SCOPE, dict.fromkeys(many, OffsetAndMetadata(1)), {"t": "id-of-t"})
    assert sizes == [COMMIT_PARTITIONS_MAX, 1]
