"""Converts answers about transactions to the admin's own types; decides nothing.

Topics are given by id. The caller knows names; a deleted topic is shown by its id.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from penstock.client.admin.transaction_model import (
    BlockingTransaction,
    Finishing,
    LedgerListing,
    OpenTransaction,
    PartitionTransactions,
    TransactionBranch,
    TransactionDescription,
    TransactionListing,
    TransactionState,
)
from penstock.core.types import TopicPartition
from penstock.proto.v1 import transaction_pb2 as pb

STATES_TO_WIRE: Final = {
    TransactionState.IDLE: pb.TRANSACTION_STATE_IDLE,
    TransactionState.OPEN: pb.TRANSACTION_STATE_OPEN,
}
_STATES: Final = {value: state for state, value in STATES_TO_WIRE.items()}
_OUTCOME: Final = "TRANSACTION_OUTCOME_"
_REASON: Final = "TRANSACTION_END_REASON_"


def listing_from_wire(seen: pb.TransactionListing) -> TransactionListing:
    """One line of a list."""
    return TransactionListing(
        transactional_id=seen.transactional_id,
        branch=seen.branch,
        state=_STATES[seen.state],
        producer_id=seen.producer_id,
        producer_epoch=seen.producer_epoch,
        open_ms=seen.open_ms if seen.state == pb.TRANSACTION_STATE_OPEN else None,
        finishing=seen.finishing,
        finishing_ms=seen.oldest_finishing_ms if seen.finishing else None,
        client_id=seen.client_id,
        client_host=seen.client_host,
    )


def topic_ids(seen: pb.TransactionDescription) -> set[str]:
    """Of all partitions that take part."""
    return {
        one.partition.topic_id
        for branch in seen.branches
        for one in (*branch.joined, *(entry.participant for entry in branch.finishing))
        if one.HasField("partition")
    }


def description_from_wire(
    seen: pb.TransactionDescription, topics: Mapping[str, str]
) -> TransactionDescription:
    """`topics`: names by id."""
    return TransactionDescription(
        transactional_id=seen.transactional_id,
        instance_id=seen.instance_id,
        client_id=seen.client_id,
        client_host=seen.client_host,
        timeout_ms=seen.transaction_timeout_ms,
        used_ms=seen.used_time_ms,
        coordinator=seen.coordinator,
        partition=seen.partition,
        branches=tuple(_branch(branch, topics) for branch in seen.branches),
    )


def _branch(seen: pb.BranchDescription, topics: Mapping[str, str]) -> TransactionBranch:
    return TransactionBranch(
        branch=seen.branch,
        state=_STATES[seen.state],
        producer_id=seen.producer_id,
        producer_epoch=seen.producer_epoch,
        started_ms=seen.started_time_ms or None,
        timeout_ms=seen.transaction_timeout_ms,
        joined=tuple(_participant(one, topics) for one in seen.joined),
        finishing=tuple(
            Finishing(_participant(one.participant, topics), one.producer_epoch, one.commit)
            for one in seen.finishing
        ),
        last_outcome=_word(pb.TransactionOutcome.Name(seen.last_outcome), _OUTCOME),
        last_reason=_word(pb.TransactionEndReason.Name(seen.last_reason), _REASON),
        run=seen.run,
        batch=seen.batch,
        task=seen.task,
        attempt=seen.attempt,
    )


def _participant(seen: pb.TransactionParticipant, topics: Mapping[str, str]) -> str:
    if seen.HasField("partition"):
        topic_id = seen.partition.topic_id
        return f"{topics.get(topic_id, topic_id)}/{seen.partition.partition}"
    return f"group {seen.group_id}"


def _word(name: str, prefix: str) -> str:
    word = name.removeprefix(prefix)
    return "" if word == "UNSPECIFIED" else word.lower().replace("_", " ")


def ledger_from_wire(seen: pb.Ledger) -> LedgerListing:
    """One application's."""
    return LedgerListing(
        application_id=seen.application_id,
        checkpoint=seen.checkpoint,
        batch=seen.batch,
        rows=seen.rows,
        time_ms=seen.time_ms,
        run=seen.run,
    )


def partition_from_wire(seen: pb.PartitionTransactions) -> PartitionTransactions:
    """What its leader says."""
    return PartitionTransactions(
        TopicPartition(seen.topic, seen.partition),
        seen.last_stable_offset,
        seen.high_watermark,
        tuple(
            OpenTransaction(
                one.producer_id, one.producer_epoch, one.first_offset, one.last_time_ms or None
            )
            for one in seen.open
        ),
    )


def blocking(
    seen: Iterable[PartitionTransactions], owners: Iterable[TransactionListing]
) -> list[BlockingTransaction]:
    """The first open transaction of each partition, which keeps back its last stable offset.

    `owners`: what is open or finishing, of all coordinators.
    """
    by_producer = {one.producer_id: one for one in owners}
    return [
        BlockingTransaction(
            where=one.where,
            last_stable_offset=one.last_stable_offset,
            high_watermark=one.high_watermark,
            producer_id=one.open[0].producer_id,
            producer_epoch=one.open[0].producer_epoch,
            last_ms=one.open[0].last_ms,
            owner=by_producer.get(one.open[0].producer_id),
        )
        for one in seen
        if one.open and one.last_stable_offset < one.high_watermark
    ]
