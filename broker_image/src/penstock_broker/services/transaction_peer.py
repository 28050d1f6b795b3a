"""The `TransactionPeerService`: joins and Ends from other brokers (`transactions.here`).

Not on the external listener. An entry that cannot be parsed is refused alone.
"""

# ruff: noqa: ARG002, N802 - gRPC fixes the names and the arguments of these methods

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.proto.v1 import transaction_peer_pb2 as pb
from penstock.proto.v1.transaction_peer_pb2_grpc import TransactionPeerServiceServicer
from penstock.rpc.transactions import (
    end_from_wire,
    endings_to_wire,
    join_from_wire,
    names_from_wire,
    names_to_wire,
    results_to_wire,
)
from penstock_broker.serving.servers import require_broker
from penstock_broker.transactions.here import Here
from penstock_broker.transactions.orphans import FIND_MAX

_ENTRIES_MAX: Final = 10_000
_M = TypeVar("_M")
_E = TypeVar("_E")


class TransactionPeerService(TransactionPeerServiceServicer):
    """See the module."""

    def __init__(self, here: Here) -> None:
        self._here = here

    async def JoinTransactions(
        self, request: pb.JoinTransactionsRequest, context: Any
    ) -> pb.JoinTransactionsResponse:
        """Answers once all entries have results."""
        require_broker(request.broker_id, "join transactions")
        results = await _act(request.joins, join_from_wire, self._here.join)
        return pb.JoinTransactionsResponse(results=results_to_wire(results))

    async def EndAtParticipants(
        self, request: pb.EndAtParticipantsRequest, context: Any
    ) -> pb.EndAtParticipantsResponse:
        """Answers once all entries have results."""
        require_broker(request.broker_id, "end transactions")
        results = await _act(request.ends, end_from_wire, self._here.end)
        return pb.EndAtParticipantsResponse(results=results_to_wire(results))

    async def FindTransactions(
        self, request: pb.FindTransactionsRequest, context: Any
    ) -> pb.FindTransactionsResponse:
        """What the coordinators here know of them; those that cannot tell are omitted."""
        require_broker(request.broker_id, "find transactions")
        if len(request.transactions) > FIND_MAX:
            raise ClusterError(
                f"the request has {len(request.transactions):,} transactions; the limit is "
                f"{FIND_MAX:,}",
                ErrorCode.INVALID_REQUEST,
            )
        found = await self._here.find(names_from_wire(request.transactions))
        return pb.FindTransactionsResponse(
            partitions=sorted(found.partitions),
            known=names_to_wire(found.known),
            ended=endings_to_wire(found.ended),
        )


async def _act(
    messages: Sequence[_M],
    parse: Callable[[_M], _E],
    act: Callable[[Sequence[_E]], Awaitable[list[PenstockError | None]]],
) -> list[PenstockError | None]:
    """Results of all messages, in order, also of those that cannot be parsed."""
    if len(messages) > _ENTRIES_MAX:
        raise ClusterError(
            f"the request has {len(messages):,} entries; the limit is {_ENTRIES_MAX:,}",
            ErrorCode.INVALID_REQUEST,
        )
    results: list[PenstockError | None] = [None] * len(messages)
    parsed: dict[int, _E] = {}
    for index, message in enumerate(messages):
        try:
            parsed[index] = parse(message)
        except PenstockError as error:
            results[index] = error
    answers = await act(list(parsed.values()))
    for index, answer in zip(parsed, answers, strict=True):
        results[index] = answer
    return results
