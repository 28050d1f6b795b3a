"""Transactions on the wire: messages between brokers, and messages to clients.

Participants that a message does not name are INVALID_REQUEST; unknown states likewise. Between
brokers a result without code is success.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from penstock.core.transactions import contract as c
from penstock.core.transactions.contract_views import Described, ListedTransaction, TransactionState
from penstock.core.transactions.records import (
    BranchRecord,
    EndReason,
    GroupParticipant,
    LedgerRecord,
    Participant,
    PartitionParticipant,
)
from penstock.core.types import ProducerId, TopicId
from penstock.core.words import listed
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.proto.v1 import errors_pb2, transaction_peer_pb2
from penstock.proto.v1 import transaction_pb2 as pb
from penstock.rpc.errors import error_from_wire, error_to_wire

_STATES = {
    pb.TRANSACTION_STATE_IDLE: TransactionState.IDLE,
    pb.TRANSACTION_STATE_OPEN: TransactionState.OPEN,
}
_STATES_TO_WIRE = {state: number for number, state in _STATES.items()}
_REASONS = {
    EndReason.PRODUCER: pb.TRANSACTION_END_REASON_PRODUCER,
    EndReason.TIMEOUT: pb.TRANSACTION_END_REASON_TIMEOUT,
    EndReason.OPERATOR: pb.TRANSACTION_END_REASON_OPERATOR,
    EndReason.FENCED: pb.TRANSACTION_END_REASON_FENCED,
    EndReason.SUPERSEDED: pb.TRANSACTION_END_REASON_SUPERSEDED,
    EndReason.MEMBER_GONE: pb.TRANSACTION_END_REASON_MEMBER_GONE,
}


_ABORTERS: Final[Mapping[int, EndReason]] = {
    pb.TRANSACTION_END_REASON_UNSPECIFIED: EndReason.OPERATOR,
    pb.TRANSACTION_END_REASON_OPERATOR: EndReason.OPERATOR,
    pb.TRANSACTION_END_REASON_MEMBER_GONE: EndReason.MEMBER_GONE,
}


def aborter_from_wire(reason: int) -> EndReason:
    """Who requests an abort. Raises ClusterError(INVALID_REQUEST) for any other value."""
    found = _ABORTERS.get(reason)
    if found is None:
        raise ClusterError(
            f"ended_by is {reason}; it must be an operator, or a group whose member is gone",
            ErrorCode.INVALID_REQUEST,
        )
    return found


def participant_to_wire(participant: Participant) -> pb.TransactionParticipant:
    """The message that names it."""
    if isinstance(participant, GroupParticipant):
        return pb.TransactionParticipant(group_id=participant.group_id)
    return pb.TransactionParticipant(
        partition=pb.ParticipantPartition(
            topic_id=participant.topic_id, partition=participant.partition
        )
    )


def participant_from_wire(message: pb.TransactionParticipant) -> Participant:
    """Raises ClusterError(INVALID_REQUEST) if it names none."""
    match message.WhichOneof("participant"):
        case "partition":
            partition = message.partition
            return PartitionParticipant(TopicId(partition.topic_id), partition.partition)
        case "group_id":
            return GroupParticipant(message.group_id)
        case _:
            raise ClusterError(
                "an entry names neither a partition nor a group", ErrorCode.INVALID_REQUEST
            )


# ---------------------------------------------------------------- between brokers


def join_to_wire(join: c.JoinRequested) -> transaction_peer_pb2.JoinEntry:
    """One entry of JoinTransactions; the request id stays here."""
    return transaction_peer_pb2.JoinEntry(
        transactional_id=join.transactional_id,
        producer_id=join.producer_id,
        producer_epoch=join.producer_epoch,
        participant=participant_to_wire(join.participant),
    )


def join_from_wire(message: transaction_peer_pb2.JoinEntry) -> c.JoinRequested:
    """With request id 0. Raises ClusterError(INVALID_REQUEST)."""
    return c.JoinRequested(
        request_id=0,
        transactional_id=message.transactional_id,
        producer_id=ProducerId(message.producer_id),
        producer_epoch=message.producer_epoch,
        participant=participant_from_wire(message.participant),
    )


def end_to_wire(end: c.End) -> transaction_peer_pb2.EndEntry:
    """One entry of EndAtParticipants."""
    return transaction_peer_pb2.EndEntry(
        participant=participant_to_wire(end.participant),
        transactional_id=end.transactional_id,
        producer_id=end.producer_id,
        producer_epoch=end.producer_epoch,
        commit=end.commit,
    )


def end_from_wire(message: transaction_peer_pb2.EndEntry) -> c.End:
    """Raises ClusterError(INVALID_REQUEST)."""
    return c.End(
        participant=participant_from_wire(message.participant),
        producer_id=ProducerId(message.producer_id),
        producer_epoch=message.producer_epoch,
        commit=message.commit,
        transactional_id=message.transactional_id,
    )


def results_to_wire(results: Iterable[PenstockError | None]) -> list[errors_pb2.Error]:
    """One per entry, in order."""
    return [errors_pb2.Error() if error is None else error_to_wire(error) for error in results]


def results_from_wire(messages: Iterable[errors_pb2.Error]) -> list[PenstockError | None]:
    """One per entry, in order."""
    return [error_from_wire(message) if message.code else None for message in messages]


# ---------------------------------------------------------------- to clients


def states_from_wire(
    states: Sequence["pb.TransactionState.ValueType"],
) -> frozenset[TransactionState]:
    """Raises ClusterError(INVALID_REQUEST) for a state that this release does not know."""
    unknown = [state for state in states if state not in _STATES]
    if unknown:
        raise ClusterError(
            f"state {unknown[0]} is not known; known are {listed(sorted(_STATES))}",
            ErrorCode.INVALID_REQUEST,
        )
    return frozenset(_STATES[state] for state in states)


def listing(found: ListedTransaction) -> pb.TransactionListing:
    """One line of ListTransactions."""
    return pb.TransactionListing(
        transactional_id=found.transactional_id,
        branch=found.branch,
        state=_STATES_TO_WIRE[found.state],
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        open_ms=found.open_ms,
        finishing=found.finishing,
        oldest_finishing_ms=found.finishing_ms,
        client_id=found.client_id,
        client_host=found.client_host,
    )


def description(found: Described, partition: int, coordinator: int) -> pb.TransactionDescription:
    """`partition` of the internal topic, led by broker `coordinator`."""
    record = found.record
    return pb.TransactionDescription(
        transactional_id=found.transactional_id,
        instance_id=record.instance_id,
        client_id=record.client_id,
        client_host=record.client_host,
        transaction_timeout_ms=record.timeout_ms,
        used_time_ms=found.used_ms,
        branches=[_branch(number, branch) for number, branch in sorted(found.branches.items())],
        partition=partition,
        coordinator=coordinator,
    )


def _branch(number: int, branch: BranchRecord) -> pb.BranchDescription:
    open_now = branch.is_open
    message = pb.BranchDescription(
        branch=number,
        state=pb.TRANSACTION_STATE_OPEN if open_now else pb.TRANSACTION_STATE_IDLE,
        producer_id=branch.producer_id,
        producer_epoch=branch.epoch,
        started_time_ms=branch.started_ms if open_now else 0,
        transaction_timeout_ms=branch.timeout_ms,
        joined=map(participant_to_wire, sorted(branch.joined, key=str)),
        finishing=[
            pb.FinishingParticipant(
                participant=participant_to_wire(participant),
                producer_epoch=ending.epoch,
                commit=ending.commit,
            )
            for participant, ending in sorted(branch.finishing.items(), key=lambda one: str(one[0]))
        ],
    )
    if branch.last is not None:
        message.last_epoch = branch.last.epoch
        message.last_outcome = (
            pb.TRANSACTION_OUTCOME_COMMITTED
            if branch.last.commit
            else pb.TRANSACTION_OUTCOME_ABORTED
        )
        message.last_reason = _REASONS[branch.last.reason]
    if branch.attempt is not None:
        message.run = branch.attempt.run
        message.batch = branch.attempt.batch
        message.task = branch.attempt.task
        message.attempt = branch.attempt.attempt
    return message


def ledger(application_id: str, found: LedgerRecord) -> pb.Ledger:
    """One line of ListLedgers; an application without a committed batch has batch -1."""
    rows = dict(found.rows)
    return pb.Ledger(
        application_id=application_id,
        checkpoint=found.checkpoint,
        batch=found.batch,
        run=found.batch_run,
        time_ms=found.time_ms,
        rows=rows.get(found.batch, 0),
    )


def names_to_wire(
    transactions: Iterable[tuple[ProducerId, int]],
) -> list[transaction_peer_pb2.TransactionName]:
    """(producer id, epoch) each."""
    return [
        transaction_peer_pb2.TransactionName(producer_id=producer_id, producer_epoch=epoch)
        for producer_id, epoch in sorted(transactions)
    ]


def names_from_wire(
    messages: Iterable[transaction_peer_pb2.TransactionName],
) -> frozenset[tuple[ProducerId, int]]:
    """(producer id, epoch) each."""
    return frozenset((ProducerId(one.producer_id), one.producer_epoch) for one in messages)


def endings_to_wire(
    ended: Mapping[tuple[ProducerId, int], bool],
) -> list[transaction_peer_pb2.TransactionEnding]:
    """By (producer id, epoch): True = committed."""
    return [
        transaction_peer_pb2.TransactionEnding(
            producer_id=producer_id, producer_epoch=epoch, commit=commit
        )
        for (producer_id, epoch), commit in sorted(ended.items())
    ]


def endings_from_wire(
    messages: Iterable[transaction_peer_pb2.TransactionEnding],
) -> dict[tuple[ProducerId, int], bool]:
    """By (producer id, epoch): True = committed."""
    return {(ProducerId(one.producer_id), one.producer_epoch): one.commit for one in messages}
