"""Every error Penstock raises or sends, and what a caller may conclude from it.

    PenstockError                 code, and its traits: retriable, applied …
    ├── MisuseError               the caller's program is wrong; never retried
    │   └── (ValueError-like: bad option, closed client, record over the limit)
    └── ClusterError              the cluster refused, or did not answer
        ├── NotLeaderError        carries the current leader when known
        ├── OffsetOutOfRangeError carries the valid range
        ├── StaleDataDirectoryError  carries the newest generation
        ├── OverloadedError       carries the delay
        │   └── ThrottledError    a quota's
        └── UnreachableError      no address answered (client side only)

The code table is the protocol's (`proto/penstock/proto/v1/errors.proto`); a test compares the
two. Nothing here imports protobuf, so that `penstock.core` may raise these.
"""

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final


class ErrorCode(IntEnum):
    """The protocol's codes; from 1000 on, conditions only a client sees."""

    UNSPECIFIED = 0
    INTERNAL = 1
    INVALID_REQUEST = 10
    INVALID_TOPIC_NAME = 11
    INVALID_CONFIG = 12
    INVALID_PARTITIONS = 13
    INVALID_REPLICATION_FACTOR = 14
    UNSUPPORTED_CODEC = 15
    CORRUPT_BATCH = 16
    RECORD_TOO_LARGE = 17
    INVALID_TIMESTAMP = 18
    INVALID_RECORD = 19
    UNKNOWN_TOPIC = 20
    TOPIC_ALREADY_EXISTS = 21
    TOPIC_ID_MISMATCH = 22
    UNKNOWN_PARTITION = 23
    NOT_LEADER = 30
    FENCED_LEADER_EPOCH = 31
    UNKNOWN_LEADER_EPOCH = 32
    LEADER_NOT_AVAILABLE = 33
    NOT_ENOUGH_REPLICAS = 34
    OFFSET_OUT_OF_RANGE = 35
    STALE_CONTROLLER_EPOCH = 36
    STALE_BROKER_SESSION = 37
    STALE_PARTITION_VERSION = 38
    INELIGIBLE_REPLICA = 39
    CLUSTER_ID_MISMATCH = 40
    CONTROLLER_UNAVAILABLE = 41
    NOT_CONTROLLER = 42
    BROKER_ID_IN_USE = 43
    STALE_RULES = 44
    STALE_DATA_DIRECTORY = 45
    OUT_OF_ORDER_SEQUENCE = 50
    PRODUCER_FENCED = 51
    DISK_FULL = 60
    OVERLOADED = 61
    STORAGE_FAILED = 62
    SHUTTING_DOWN = 63
    REQUEST_TIMED_OUT = 64
    DATA_CORRUPTED = 65
    NOT_COORDINATOR = 70
    COORDINATOR_LOADING = 71
    UNKNOWN_MEMBER = 72
    STALE_MEMBER_EPOCH = 73
    FENCED_INSTANCE_ID = 74
    UNRELEASED_INSTANCE_ID = 75
    UNSUPPORTED_ASSIGNOR = 76
    GROUP_NOT_EMPTY = 77
    UNKNOWN_GROUP = 78
    OFFSET_WENT_BACK = 79
    CONCURRENT_TRANSACTIONS = 80
    TRANSACTION_ABORTED = 81
    INVALID_TRANSACTION_STATE = 82
    UNSTABLE_OFFSETS = 83
    UNKNOWN_TRANSACTIONAL_ID = 84
    LEDGER_MISMATCH = 85
    TRANSACTION_TOO_LARGE = 86
    UNAUTHENTICATED = 90
    PERMISSION_DENIED = 91
    CREDENTIALS_EXPIRED = 92
    THROTTLED = 93
    AUTH_NOT_READY = 94
    MOVE_WAITS = 100
    MOVES_PAUSED = 101
    QUEUE_FULL = 102
    NO_MOVE = 103
    FORMAT_TOO_OLD = 104
    STALE_OPERATOR_EPOCH = 105
    DELETION_PROTECTED = 106
    HIBERNATING = 140
    MISUSE = 1000
    UNREACHABLE = 1001
    DELIVERY_TIMED_OUT = 1002
    BUFFER_FULL = 1003
    CLOSED = 1004
    TRUNCATED_BY_RETENTION = 1005


class Applied(Enum):
    """What an error proves about the attempt it answers. Of a produce: about the log (I8)."""

    NO = 1
    """It has no effect, and never will have one."""
    MAYBE = 2
    """It may have had its effect, or may still have it."""


class Lost(Enum):
    """What the caller has lost, and must get again before it continues."""

    NOTHING = 0
    SEQUENCE = 1
    """The partition expects different sequences of this producer: a new epoch is needed."""
    MEMBERSHIP = 2
    """The group has assigned the member's partitions to others: it must join again."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What a caller may conclude from a code without knowing the code.

    Attributes:
        grpc_code: The gRPC status of a whole failed call.
        applied: Set for every code, because a default would be a guess about the log.
        retriable: The same call may succeed later, unchanged.
        refresh_metadata: The leader, or coordinator, must be looked up again first.
        names_leader: The error is a NotLeaderError.
        lost: See `Lost`.
    """

    grpc_code: int
    applied: Applied
    retriable: bool = False
    refresh_metadata: bool = False
    names_leader: bool = False
    lost: Lost = Lost.NOTHING


_NO: Final = Applied.NO
_MAYBE: Final = Applied.MAYBE

TRAITS: Final[dict[ErrorCode, Traits]] = {
    ErrorCode.UNSPECIFIED: Traits(2, _MAYBE),
    ErrorCode.INTERNAL: Traits(13, _MAYBE),
    ErrorCode.INVALID_REQUEST: Traits(3, _NO),
    ErrorCode.INVALID_TOPIC_NAME: Traits(3, _NO),
    ErrorCode.INVALID_CONFIG: Traits(3, _NO),
    ErrorCode.INVALID_PARTITIONS: Traits(3, _NO),
    ErrorCode.INVALID_REPLICATION_FACTOR: Traits(3, _NO),
    ErrorCode.UNSUPPORTED_CODEC: Traits(3, _NO),
    ErrorCode.CORRUPT_BATCH: Traits(3, _NO),
    ErrorCode.RECORD_TOO_LARGE: Traits(3, _NO),
    ErrorCode.INVALID_TIMESTAMP: Traits(3, _NO),
    ErrorCode.INVALID_RECORD: Traits(3, _NO),
    ErrorCode.UNKNOWN_TOPIC: Traits(5, _NO, retriable=True, refresh_metadata=True),
    ErrorCode.TOPIC_ALREADY_EXISTS: Traits(6, _NO),
    ErrorCode.TOPIC_ID_MISMATCH: Traits(9, _NO, refresh_metadata=True),
    ErrorCode.UNKNOWN_PARTITION: Traits(5, _NO, retriable=True, refresh_metadata=True),
    ErrorCode.NOT_LEADER: Traits(
        9, _MAYBE, retriable=True, refresh_metadata=True, names_leader=True
    ),
    ErrorCode.FENCED_LEADER_EPOCH: Traits(
        9, _NO, retriable=True, refresh_metadata=True, names_leader=True
    ),
    ErrorCode.UNKNOWN_LEADER_EPOCH: Traits(
        14, _NO, retriable=True, refresh_metadata=True, names_leader=True
    ),
    ErrorCode.LEADER_NOT_AVAILABLE: Traits(14, _NO, retriable=True, refresh_metadata=True),
    ErrorCode.NOT_ENOUGH_REPLICAS: Traits(14, _NO, retriable=True, refresh_metadata=True),
    ErrorCode.OFFSET_OUT_OF_RANGE: Traits(11, _NO, refresh_metadata=True),
    ErrorCode.STALE_CONTROLLER_EPOCH: Traits(9, _NO),
    ErrorCode.STALE_BROKER_SESSION: Traits(9, _NO, retriable=True),
    ErrorCode.STALE_PARTITION_VERSION: Traits(10, _NO, retriable=True),
    ErrorCode.INELIGIBLE_REPLICA: Traits(9, _NO),
    ErrorCode.CLUSTER_ID_MISMATCH: Traits(9, _NO),
    ErrorCode.CONTROLLER_UNAVAILABLE: Traits(14, _MAYBE, retriable=True),
    ErrorCode.NOT_CONTROLLER: Traits(14, _MAYBE, retriable=True),
    ErrorCode.BROKER_ID_IN_USE: Traits(6, _NO),
    ErrorCode.STALE_RULES: Traits(10, _NO),
    ErrorCode.STALE_DATA_DIRECTORY: Traits(9, _NO),
    ErrorCode.OUT_OF_ORDER_SEQUENCE: Traits(9, _NO, lost=Lost.SEQUENCE),
    ErrorCode.PRODUCER_FENCED: Traits(9, _NO, lost=Lost.SEQUENCE),
    ErrorCode.DISK_FULL: Traits(8, _NO, retriable=True),
    ErrorCode.OVERLOADED: Traits(8, _NO, retriable=True),
    ErrorCode.STORAGE_FAILED: Traits(14, _MAYBE, retriable=True, refresh_metadata=True),
    ErrorCode.SHUTTING_DOWN: Traits(14, _MAYBE, retriable=True, refresh_metadata=True),
    ErrorCode.REQUEST_TIMED_OUT: Traits(4, _MAYBE, retriable=True, refresh_metadata=True),
    ErrorCode.DATA_CORRUPTED: Traits(15, _MAYBE),
    ErrorCode.NOT_COORDINATOR: Traits(9, _MAYBE, retriable=True, refresh_metadata=True),
    ErrorCode.COORDINATOR_LOADING: Traits(14, _MAYBE, retriable=True),
    ErrorCode.UNKNOWN_MEMBER: Traits(5, _NO, lost=Lost.MEMBERSHIP),
    ErrorCode.STALE_MEMBER_EPOCH: Traits(9, _NO, lost=Lost.MEMBERSHIP),
    ErrorCode.FENCED_INSTANCE_ID: Traits(9, _NO, lost=Lost.MEMBERSHIP),
    ErrorCode.UNRELEASED_INSTANCE_ID: Traits(6, _NO, retriable=True),
    ErrorCode.UNSUPPORTED_ASSIGNOR: Traits(3, _NO),
    ErrorCode.GROUP_NOT_EMPTY: Traits(9, _NO),
    ErrorCode.UNKNOWN_GROUP: Traits(5, _NO),
    ErrorCode.OFFSET_WENT_BACK: Traits(9, _NO),
    ErrorCode.CONCURRENT_TRANSACTIONS: Traits(10, _NO, retriable=True),
    ErrorCode.TRANSACTION_ABORTED: Traits(10, _NO),
    ErrorCode.INVALID_TRANSACTION_STATE: Traits(9, _NO),
    ErrorCode.UNSTABLE_OFFSETS: Traits(14, _NO, retriable=True),
    ErrorCode.UNKNOWN_TRANSACTIONAL_ID: Traits(5, _NO),
    ErrorCode.LEDGER_MISMATCH: Traits(9, _NO),
    ErrorCode.TRANSACTION_TOO_LARGE: Traits(8, _NO),
    ErrorCode.UNAUTHENTICATED: Traits(16, _NO),
    ErrorCode.PERMISSION_DENIED: Traits(7, _NO),
    ErrorCode.CREDENTIALS_EXPIRED: Traits(16, _NO, retriable=True),
    ErrorCode.THROTTLED: Traits(8, _NO, retriable=True),
    ErrorCode.AUTH_NOT_READY: Traits(14, _NO, retriable=True),
    ErrorCode.MOVE_WAITS: Traits(9, _MAYBE, retriable=True),
    ErrorCode.MOVES_PAUSED: Traits(14, _NO, retriable=True),
    ErrorCode.QUEUE_FULL: Traits(8, _NO, retriable=True),
    ErrorCode.NO_MOVE: Traits(9, _NO),
    ErrorCode.FORMAT_TOO_OLD: Traits(9, _NO),
    ErrorCode.STALE_OPERATOR_EPOCH: Traits(9, _NO),
    ErrorCode.DELETION_PROTECTED: Traits(9, _NO),
    ErrorCode.HIBERNATING: Traits(14, _NO, retriable=True),
    ErrorCode.MISUSE: Traits(3, _NO),
    ErrorCode.UNREACHABLE: Traits(14, _MAYBE, retriable=True, refresh_metadata=True),
    ErrorCode.DELIVERY_TIMED_OUT: Traits(4, _MAYBE),
    ErrorCode.BUFFER_FULL: Traits(8, _NO, retriable=True),
    ErrorCode.CLOSED: Traits(9, _MAYBE),
    ErrorCode.TRUNCATED_BY_RETENTION: Traits(11, _NO),
}


@dataclass(frozen=True, slots=True)
class CurrentLeader:
    """The current leader of a partition. `broker_id` -1: none."""

    broker_id: int
    leader_epoch: int
    host: str = ""
    port: int = 0


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets that can be fetched: `log_start_offset` <= offset <= `high_watermark`."""

    log_start_offset: int
    high_watermark: int


class PenstockError(Exception):
    """Root of all errors. `str(error)` says what, which, the value seen, the limit, what to do."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        super().__init__(message)
        self.code = code

    @property
    def message(self) -> str:
        """As `str(error)`."""
        return str(self.args[0])

    @property
    def retriable(self) -> bool:
        """The same call may succeed later, unchanged."""
        return TRAITS[self.code].retriable

    @property
    def refresh_metadata(self) -> bool:
        """The client's metadata about leaders, coordinators or topics is stale."""
        return TRAITS[self.code].refresh_metadata

    @property
    def applied(self) -> Applied:
        """Whether the request may have taken effect."""
        return TRAITS[self.code].applied

    @property
    def lost(self) -> Lost:
        """What the caller has lost."""
        return TRAITS[self.code].lost


class MisuseError(PenstockError):
    """The calling program is wrong: fix it, a retry cannot help."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.MISUSE) -> None:
        super().__init__(message, code)


class ClusterError(PenstockError):
    """The cluster refused, or its answer did not come."""


class UnknownCallError(ClusterError):
    """The broker does not know this call: it is of an earlier release than this client."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorCode.INVALID_REQUEST)


class NotLeaderError(ClusterError):
    """Another broker leads this partition, or the epoch named is not the current one."""

    def __init__(
        self,
        message: str,
        code: ErrorCode = ErrorCode.NOT_LEADER,
        leader: CurrentLeader | None = None,
    ) -> None:
        super().__init__(message, code)
        self.leader = leader


class OffsetOutOfRangeError(ClusterError):
    """The offset is before the log start or past the high watermark."""

    def __init__(self, message: str, valid: OffsetRange | None = None) -> None:
        super().__init__(message, ErrorCode.OFFSET_OUT_OF_RANGE)
        self.valid = valid


class OverloadedError(ClusterError):
    """A bounded buffer is full. Try again after `throttle_ms`."""

    def __init__(self, message: str, throttle_ms: int = 100) -> None:
        super().__init__(message, ErrorCode.OVERLOADED)
        self.throttle_ms = throttle_ms


class ThrottledError(OverloadedError):
    """A principal is above its quota. Nothing was done; try again after `throttle_ms`."""

    def __init__(self, message: str, throttle_ms: int) -> None:
        super().__init__(message, throttle_ms)
        self.code = ErrorCode.THROTTLED


class StaleDataDirectoryError(ClusterError):
    """A broker's data directory is older than the cluster knows: it was restored, or the message is
    of an earlier run. `generation`: the newest that was heard of, which the directory lacks.
    """

    def __init__(self, message: str, generation: str) -> None:
        super().__init__(message, ErrorCode.STALE_DATA_DIRECTORY)
        self.generation = generation


class UnreachableError(ClusterError):
    """No address answered within the timeout. `refused`: nothing listens there."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message, ErrorCode.UNREACHABLE)
        self.refused = refused
