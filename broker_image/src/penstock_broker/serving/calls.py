"""What each call needs, of all services: the one table that doors and tests read.

    edge    decided before the service sees the request; the call fails as a whole
    parts   decided by the service for each part of a request, or for each name in its answer: what
            is denied fails, or is left out, alone
    no needs and OPEN    everybody who is known

Only users are asked. Calls of `SERVERS` are between brokers and controllers, who prove by
certificate who they are, and no user makes them, whatever the rules say.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from penstock.core.authorization import Kind, Operation


class Who(Enum):
    """Who a call is for."""

    USERS = "users"
    """Those whom rules allow what the call needs."""
    OPEN = "open"
    """Everybody who is known; answers show what the caller may see."""
    SERVERS = "servers"


@dataclass(frozen=True, slots=True)
class Need:
    """An operation on what a request names.

    Attributes:
        names: The names in a request, for a need that is decided at the edge.
    """

    operation: Operation
    kind: Kind
    names: Callable[[Any], Iterable[str]] | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """What one method needs. `changes`: it is written into the audit log."""

    who: Who
    edge: tuple[Need, ...] = ()
    parts: tuple[Need, ...] = ()
    changes: bool = False


def _cluster(operation: Operation, *, changes: bool = False) -> Call:
    need = Need(operation, Kind.CLUSTER, lambda _: ("",))
    return Call(Who.USERS, edge=(need,), changes=changes)


def _topic(operation: Operation, *, changes: bool = False) -> Call:
    need = Need(operation, Kind.TOPIC, lambda request: (request.topic,))
    return Call(Who.USERS, edge=(need,), changes=changes)


def _group(operation: Operation, *more: Need, changes: bool = False) -> Call:
    need = Need(operation, Kind.GROUP, lambda request: (request.group_id,))
    return Call(Who.USERS, edge=(need, *more), changes=changes)


def _transaction(operation: Operation, *, changes: bool = False) -> Call:
    need = Need(operation, Kind.TRANSACTIONAL_ID, lambda request: (request.transactional_id,))
    return Call(Who.USERS, edge=(need,), changes=changes)


def _application(*, changes: bool = False) -> Call:
    """An application id is a transactional id of branches."""
    need = Need(Operation.WRITE, Kind.TRANSACTIONAL_ID, lambda request: (request.application_id,))
    return Call(Who.USERS, edge=(need,), changes=changes)


def _parts(operation: Operation, kind: Kind, *more: Need, changes: bool = False) -> Call:
    return Call(Who.USERS, parts=(Need(operation, kind), *more), changes=changes)


def _shown(kind: Kind) -> Call:
    return Call(Who.OPEN, parts=(Need(Operation.DESCRIBE, kind),))


def _given_transactional_id(request: Any) -> tuple[str, ...]:
    return (request.transactional_id,) if request.transactional_id else ()


def _hello_group(request: Any) -> tuple[str, ...]:
    return (request.hello.group_id,) if request.HasField("hello") else ()


def _subscribed(request: Any) -> Iterable[str]:
    """Topics of a hello, or of a heartbeat that changes the subscription."""
    match request.WhichOneof("message"):
        case "hello":
            return tuple(request.hello.subscription.topics)
        case "heartbeat" if request.heartbeat.HasField("subscription"):
            return tuple(request.heartbeat.subscription.topics)
        case _:
            return ()


def _member_transactional_id(request: Any) -> tuple[str, ...]:
    return _given_transactional_id(request.hello) if request.HasField("hello") else ()


def _of_others(request: Any) -> tuple[str, ...]:
    """Whoever asks about somebody else describes the cluster. See also `Access.authorize`."""
    return ("",) if request.principal else ()


_SERVERS: Final = Call(Who.SERVERS)
_OF_TRANSACTION: Final = Need(Operation.WRITE, Kind.TRANSACTIONAL_ID, _given_transactional_id)
_COMMIT: Final = Call(
    Who.USERS,
    edge=(
        Need(Operation.READ, Kind.GROUP, lambda request: (request.group_id,)),
        _OF_TRANSACTION,
    ),
    parts=(Need(Operation.READ, Kind.TOPIC),),
)
_PRODUCE: Final = _parts(Operation.WRITE, Kind.TOPIC, Need(Operation.WRITE, Kind.TRANSACTIONAL_ID))
_FETCH: Final = _parts(Operation.READ, Kind.TOPIC)

CALLS: Final[Mapping[str, Call]] = {
    "BrokerService.Produce": _PRODUCE,
    "BrokerService.ProduceStream": _PRODUCE,
    "BrokerService.Fetch": _FETCH,
    "BrokerService.Subscribe": _FETCH,
    "BrokerService.ListOffsets": _parts(Operation.DESCRIBE, Kind.TOPIC),
    "BrokerService.Metadata": _shown(Kind.TOPIC),
    # Without a transactional id: everybody, for a producer id of their own (`core.producer_owner`).
    "BrokerService.InitProducer": Call(Who.OPEN, edge=(_OF_TRANSACTION,)),
    "AdminService.CreateTopics": _parts(Operation.CREATE, Kind.TOPIC, changes=True),
    "AdminService.DeleteTopics": _parts(Operation.DELETE, Kind.TOPIC, changes=True),
    "AdminService.CreatePartitions": _topic(Operation.ALTER, changes=True),
    "AdminService.AlterConfigs": _topic(Operation.ALTER, changes=True),
    "AdminService.DescribeConfigs": _topic(Operation.DESCRIBE),
    "AdminService.DeleteRecords": _topic(Operation.DELETE, changes=True),
    "AdminService.ElectLeaders": _cluster(Operation.ALTER, changes=True),
    "AdminService.UnregisterBroker": _cluster(Operation.ALTER, changes=True),
    "AdminService.DescribeCluster": _cluster(Operation.DESCRIBE),
    "AdminService.DescribeLogs": _cluster(Operation.DESCRIBE),
    "AdminService.AlterAccess": _cluster(Operation.ALTER, changes=True),
    "AdminService.DescribeAccess": _cluster(Operation.DESCRIBE),
    "AdminService.AlterQuotas": _cluster(Operation.ALTER, changes=True),
    "AdminService.DescribeQuotas": _cluster(Operation.DESCRIBE),
    "AdminService.AlterReplicas": _cluster(Operation.ALTER, changes=True),
    "AdminService.DescribeMoves": _cluster(Operation.DESCRIBE),
    "AdminService.AlterBrokers": _cluster(Operation.ALTER, changes=True),
    "AdminService.AlterThrottle": _cluster(Operation.ALTER, changes=True),
    "AdminService.AlterCluster": _cluster(Operation.ALTER, changes=True),
    "AdminService.DescribeQuiescence": _cluster(Operation.DESCRIBE),
    "AdminService.Finalize": _cluster(Operation.ALTER, changes=True),
    "AdminService.AcquireOperatorEpoch": _cluster(Operation.ALTER, changes=True),
    "AdminService.StartScrub": _cluster(Operation.ALTER, changes=True),
    "AdminService.DescribeScrub": _cluster(Operation.DESCRIBE),
    "AdminService.AcceptLoss": _topic(Operation.DELETE, changes=True),
    "AdminService.DropOrphans": _cluster(Operation.ALTER, changes=True),
    "AdminService.DescribeBrokerConfigs": _cluster(Operation.DESCRIBE),
    "AdminService.CheckAccess": Call(
        Who.OPEN, edge=(Need(Operation.DESCRIBE, Kind.CLUSTER, _of_others),)
    ),
    "GroupService.FindCoordinator": _group(Operation.DESCRIBE),
    "GroupService.Join": Call(
        Who.USERS,
        edge=(
            Need(Operation.READ, Kind.GROUP, _hello_group),
            Need(Operation.READ, Kind.TOPIC, _subscribed),
            Need(Operation.WRITE, Kind.TRANSACTIONAL_ID, _member_transactional_id),
        ),
        # Of a pattern: all topics that begin as it does.
        parts=(Need(Operation.READ, Kind.TOPIC),),
    ),
    "GroupService.CommitOffsets": _COMMIT,
    "GroupService.CommitOffsetsStream": _COMMIT,
    "GroupService.FetchOffsets": Call(
        Who.USERS,
        edge=(Need(Operation.DESCRIBE, Kind.GROUP, lambda request: (request.group_id,)),),
        # Of topics that are named.
        parts=(Need(Operation.DESCRIBE, Kind.TOPIC),),
    ),
    "GroupService.ResetOffsets": _group(
        Operation.RESET,
        Need(
            Operation.DESCRIBE,
            Kind.TOPIC,
            lambda request: dict.fromkeys(part.topic for part in request.partitions),
        ),
        changes=True,
    ),
    "GroupService.DeleteGroup": _group(Operation.DELETE, changes=True),
    "GroupService.ListGroups": _shown(Kind.GROUP),
    "GroupService.DescribeGroups": _parts(Operation.DESCRIBE, Kind.GROUP),
    "TransactionService.FindTransactionCoordinator": _transaction(Operation.DESCRIBE),
    "TransactionService.EndTransaction": _transaction(Operation.WRITE),
    "TransactionService.EndTransactionStream": _transaction(Operation.WRITE),
    "TransactionService.BeginBranch": _application(),
    "TransactionService.CommitBatch": _application(),
    "TransactionService.AbortBatch": _application(),
    "TransactionService.ListTransactions": _shown(Kind.TRANSACTIONAL_ID),
    "TransactionService.DescribeTransactions": _parts(Operation.DESCRIBE, Kind.TRANSACTIONAL_ID),
    # Whoever may use an id can abort its transaction anyway, by taking it over.
    "TransactionService.AbortTransaction": _transaction(Operation.WRITE, changes=True),
    "TransactionService.ListLedgers": _shown(Kind.TRANSACTIONAL_ID),
    "TransactionService.ForgetLedger": _application(changes=True),
    "TransactionService.DescribePartitionTransactions": _parts(Operation.DESCRIBE, Kind.TOPIC),
    "TransactionPeerService.JoinTransactions": _SERVERS,
    "TransactionPeerService.EndAtParticipants": _SERVERS,
    "TransactionPeerService.FindTransactions": _SERVERS,
    "ReplicationService.Replicate": _SERVERS,
    "ReplicationService.ReadExact": _SERVERS,
    "ReplicationService.ReadDigest": _SERVERS,
    "JournalService.PromiseJournal": _SERVERS,
    "JournalService.KeepJournal": _SERVERS,
    # By the token of a broker's pod, on a port of its own.
    "EnrolmentService.Enrol": _SERVERS,
    "EnrolmentService.ListTokenIssuers": _SERVERS,
    "ControllerService.Session": _SERVERS,
    "ControllerService.AlterIsr": _SERVERS,
    "ControllerService.AllocateProducerIds": _SERVERS,
    "ControllerService.ReportReplicas": _SERVERS,
}
"""Every method of every service; a test compares it with the protocol."""
BY_METHOD: Final[Mapping[str, Call]] = {
    name.partition(".")[2]: call for name, call in CALLS.items()
}
"""The same by the name of the method alone: no two services have one of the same name."""
assert len(BY_METHOD) == len(CALLS)
