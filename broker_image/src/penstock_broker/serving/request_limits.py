"""How large a request may be, by method, and how much of it is parsed: checked on its bytes.

    bytes ─ too long? ─▶ count fields ─ too many? ─▶ parse

A repeated empty message takes two bytes on the wire and eighty in memory: one request of 64 MiB
would take gigabytes. So nothing is parsed before its fields are counted. The loop stops at the
limit, and skips whatever takes no more memory than bytes: strings, and messages in which nothing is
repeated, such as a batch, so that a produced partition costs one step. Short requests are not
counted.

A method's limit in bytes is what its largest sensible request takes. Only methods that carry
batches, or a controller's documents, need that of a connection (`rpc.channel`). Limits on what a
request may name are checked by the services, with better words; those here are above them.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from penstock.errors import ClusterError, ErrorCode
from penstock.rpc.channel import MAX_MESSAGE_BYTES

_KIB: Final = 1024
_MIB: Final = 1024 * 1024
UNCOUNTED_BYTES: Final = 16 * _KIB
"""Up to here, a request is parsed at once: it cannot take more than about 1 MiB."""


class RequestLimit(NamedTuple):
    """Size of a request in bytes, and its number of fields (`count_fields`); both ends included."""

    size_bytes: int
    fields: int


_NAMES: Final = RequestLimit(16 * _KIB, 8_000)
"""A few names and numbers."""
_SESSION: Final = RequestLimit(256 * _KIB, 8_000)
"""500 generations of a data directory, or 1,000 copies: what a broker of any release says at once.
Brokers say less, as controllers of earlier releases have the limit of `_NAMES`."""
_LIST: Final = RequestLimit(_MIB, 50_000)
"""A list of names."""
_OFFSETS: Final = RequestLimit(8 * _MIB, 100_000)
"""10,000 partitions with offsets and texts."""
_PARTITIONS: Final = RequestLimit(8 * _MIB, 150_000)
"""20,000 partitions, with what identifies a transaction or an offset in each, be they of as many
topics."""
_BATCHES: Final = RequestLimit(MAX_MESSAGE_BYTES, 21_000)
"""20,000 partitions."""
_DOCUMENTS: Final = RequestLimit(MAX_MESSAGE_BYTES, 50_000)
"""The documents of all topics, one of at most 1 MiB each."""

REQUEST_LIMITS: Final[Mapping[str, RequestLimit]] = {
    "BrokerService.Produce": _BATCHES,
    "BrokerService.ProduceStream": _BATCHES,
    "BrokerService.Fetch": _PARTITIONS,
    "BrokerService.Subscribe": _PARTITIONS,
    "BrokerService.ListOffsets": _PARTITIONS,
    "BrokerService.Metadata": _PARTITIONS,
    "BrokerService.InitProducer": _NAMES,
    "GroupService.FindCoordinator": _NAMES,
    "GroupService.Join": _PARTITIONS,
    "GroupService.CommitOffsets": _OFFSETS,
    "GroupService.CommitOffsetsStream": _OFFSETS,
    "GroupService.FetchOffsets": _OFFSETS,
    "GroupService.ResetOffsets": _OFFSETS,
    "GroupService.DeleteGroup": _NAMES,
    "GroupService.ListGroups": _NAMES,
    "GroupService.DescribeGroups": _LIST,
    "TransactionService.FindTransactionCoordinator": _NAMES,
    "TransactionService.EndTransaction": _NAMES,
    "TransactionService.EndTransactionStream": _NAMES,
    "TransactionService.BeginBranch": _NAMES,
    "TransactionService.CommitBatch": _LIST,
    "TransactionService.AbortBatch": _NAMES,
    "TransactionService.ListTransactions": _NAMES,
    "TransactionService.DescribeTransactions": _LIST,
    "TransactionService.AbortTransaction": _NAMES,
    "TransactionService.ListLedgers": _NAMES,
    "TransactionService.ForgetLedger": _NAMES,
    "TransactionService.DescribePartitionTransactions": _NAMES,
    "TransactionPeerService.JoinTransactions": _PARTITIONS,
    "TransactionPeerService.EndAtParticipants": _PARTITIONS,
    "TransactionPeerService.FindTransactions": _PARTITIONS,
    "ReplicationService.Replicate": _PARTITIONS,
    "ReplicationService.ReadExact": _NAMES,
    "ReplicationService.ReadDigest": _NAMES,
    "EnrolmentService.Enrol": _NAMES,
    "EnrolmentService.ListTokenIssuers": _NAMES,
    "JournalService.PromiseJournal": _NAMES,
    "JournalService.KeepJournal": _DOCUMENTS,
    "ControllerService.Session": _SESSION,
    "ControllerService.AlterIsr": _PARTITIONS,
    "ControllerService.AllocateProducerIds": _NAMES,
    "ControllerService.ReportReplicas": _PARTITIONS,
    "AdminService.CreateTopics": _LIST,
    "AdminService.DeleteTopics": _LIST,
    "AdminService.CreatePartitions": _NAMES,
    "AdminService.AlterConfigs": _LIST,
    "AdminService.DescribeConfigs": _NAMES,
    "AdminService.DeleteRecords": _NAMES,
    "AdminService.ElectLeaders": _PARTITIONS,
    "AdminService.UnregisterBroker": _NAMES,
    "AdminService.DescribeCluster": _NAMES,
    "AdminService.DescribeLogs": _LIST,
    "AdminService.AlterAccess": _LIST,
    "AdminService.DescribeAccess": _LIST,
    "AdminService.CheckAccess": _NAMES,
    "AdminService.AlterQuotas": _LIST,
    "AdminService.DescribeQuotas": _NAMES,
    "AdminService.AlterReplicas": _PARTITIONS,
    "AdminService.DescribeMoves": _LIST,
    "AdminService.AlterBrokers": _LIST,
    "AdminService.AlterThrottle": _NAMES,
    "AdminService.AlterCluster": _NAMES,
    "AdminService.DescribeQuiescence": _NAMES,
    "AdminService.Finalize": _NAMES,
    "AdminService.AcquireOperatorEpoch": _NAMES,
    "AdminService.StartScrub": _NAMES,
    "AdminService.DescribeScrub": _NAMES,
    "AdminService.AcceptLoss": _NAMES,
    "AdminService.DropOrphans": _LIST,
    "AdminService.DescribeBrokerConfigs": _NAMES,
}
"""Every method of every service: a new one without a limit fails at its first call."""

Body: TypeAlias = bytes | bytearray | memoryview
Shape: TypeAlias = "dict[int, Shape]"
"""Of a message: by field number, the shapes of those messages in it whose fields count, too."""
_LENGTH_DELIMITED: Final = 2
_FIXED_BYTES: Final = {1: 8, 5: 4}
_OBJECTS: Final = (
    FieldDescriptor.TYPE_MESSAGE,
    FieldDescriptor.TYPE_STRING,
    FieldDescriptor.TYPE_BYTES,
)


class RequestCheck:
    """Checks the requests of one method."""

    def __init__(self, method: str) -> None:
        """`method` as gRPC names it: `/penstock.proto.v1.BrokerService/Produce`."""
        service, _, self._name = method.strip("/").rpartition("/")
        self._limit = REQUEST_LIMITS[f"{service.rpartition('.')[2]}.{self._name}"]
        found = descriptor_pool.Default().FindMethodByName(f"{service}.{self._name}")
        self._shape = shape_of(found.input_type)

    def __call__(self, body: Body) -> None:
        """Raises ClusterError(INVALID_REQUEST) for what must not be parsed."""
        size_bytes = len(body)
        if size_bytes > self._limit.size_bytes:
            raise ClusterError(
                f"a request of {self._name} has {size_bytes} bytes, the limit is "
                f"{self._limit.size_bytes}; split it into several requests",
                ErrorCode.INVALID_REQUEST,
            )
        if size_bytes <= UNCOUNTED_BYTES:
            return
        most = self._limit.fields
        try:
            if count_fields(body, self._shape, most) <= most:
                return
        except (IndexError, ValueError):
            raise ClusterError(
                f"the request's {size_bytes} bytes are not a valid message of {self._name}",
                ErrorCode.INVALID_REQUEST,
            ) from None
        raise ClusterError(
            f"a request of {self._name} with {size_bytes} bytes has more than {most} fields, which "
            "is the limit; split it into several requests",
            ErrorCode.INVALID_REQUEST,
        )


def shape_of(message: Descriptor) -> Shape:
    """The shape of a message type, which must not contain itself."""
    return {
        field.number: shape_of(field.message_type)
        for field in message.fields
        if field.message_type is not None and _may_grow(field.message_type)
    }


def _may_grow(message: Descriptor) -> bool:
    """Its fields can take much more memory than bytes: entries of a list or a map, and messages of
    a oneof, each of which replaces the one before, whose memory stays taken."""
    return any(
        (field.is_repeated and field.type in _OBJECTS)
        or (
            field.message_type is not None
            and (field.containing_oneof is not None or _may_grow(field.message_type))
        )
        for field in message.fields
    )


def count_fields(body: Body, shape: Shape, most: int) -> int:
    """How many fields a message has, with those of the messages in `shape`; stops above `most`.

    Raises IndexError or ValueError for what is no message.
    """
    count, position, end = 0, 0, len(body)
    outer: list[tuple[int, Shape]] = []
    while True:
        while position == end:
            if not outer:
                return count
            end, shape = outer.pop()
        count += 1
        if count > most:
            return count
        tag, position = _varint(body, position)
        position, after = _content(body, tag & 7, position)
        if after > end:
            raise ValueError("a field ends behind its message")
        inner = shape.get(tag >> 3)
        if inner is None or tag & 7 != _LENGTH_DELIMITED:
            position = after
        else:
            outer.append((end, shape))
            end, shape = after, inner


def _content(body: Body, kind: int, position: int) -> tuple[int, int]:
    """Where the content of a field of this wire type begins and ends."""
    if kind == _LENGTH_DELIMITED:
        size, position = _varint(body, position)
        return position, position + size
    if kind == 0:
        return position, _varint(body, position)[1]
    if kind in _FIXED_BYTES:
        return position, position + _FIXED_BYTES[kind]
    raise ValueError("groups are not supported")


def _varint(body: Body, position: int) -> tuple[int, int]:
    """The number at `position`, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte <= 0x7F:
            return value, position
    raise ValueError("a number has more than 10 bytes")
