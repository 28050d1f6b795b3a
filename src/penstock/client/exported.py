"""Every name of `penstock.client`, which imports this module when the first of them is used."""

from penstock.client.admin.access_calls import AccessDecision
from penstock.client.admin.admin import AsyncAdmin
from penstock.client.admin.config_calls import BrokerConfigEntry, ConfigSource
from penstock.client.admin.damage_model import LogDifference, ScrubbedLog, ScrubDescription
from penstock.client.admin.move_model import (
    BrokerChange,
    BrokerPlacement,
    CopyDescription,
    Cordon,
    FormatChange,
    MoveDescription,
    MoveOutcome,
    MovesDescription,
    MoveState,
    ReplicaMove,
)
from penstock.client.admin.transaction_model import (
    BlockingTransaction,
    LedgerListing,
    OpenTransaction,
    PartitionTransactions,
    TransactionBranch,
    TransactionDescription,
    TransactionListing,
    TransactionState,
)
from penstock.client.config import ClientConfig, ConsumerConfig, ProducerConfig
from penstock.client.consumer.consumer import AsyncConsumer
from penstock.client.consumer.read_result import ReadResult
from penstock.client.dead_letters import HandlerFailedError
from penstock.client.decoders import (
    DecodedRecord,
    DecodeError,
    Decoder,
    avro_decoder,
    decode_records,
    json_decoder,
    protobuf_decoder,
    string_decoder,
)
from penstock.client.group.model import (
    GroupDescription,
    GroupListing,
    GroupState,
    MemberDescription,
    OffsetAndMetadata,
    OffsetChange,
    PendingOffsets,
    RebalanceListener,
)
from penstock.client.model import (
    EARLIEST,
    LATEST,
    BrokerDescription,
    BrokerQuiescence,
    ClusterDescription,
    ConfigEntry,
    ConsumedBatch,
    DeliveryReport,
    ListedOffset,
    LogDescription,
    OffsetSpan,
    OffsetSpec,
    OrphanedLog,
    OrphanOutcome,
    PartitionDescription,
    PlaintextCaller,
    PlaintextCallers,
    Record,
    TopicDescription,
)
from penstock.client.producer.delivery import ColumnsDelivery, Delivery, DeliveryError
from penstock.client.producer.producer import AsyncProducer
from penstock.client.serializers import (
    BytesSerializer,
    JsonSerializer,
    ProtobufSerializer,
    Serializer,
    StringSerializer,
)
from penstock.client.sync.admin import Admin
from penstock.client.sync.branches import Branches
from penstock.client.sync.consumer import Consumer
from penstock.client.sync.producer import Producer, Transaction
from penstock.client.sync.transformer import Out, Transformer, transform
from penstock.client.sync.workers import WorkerPool
from penstock.client.transaction.branch_model import BatchOutcome, BatchRun, Branch
from penstock.client.transaction.branches import AsyncBranches
from penstock.client.transaction.contract import TransactionError
from penstock.client.transaction.handle import AsyncTransaction
from penstock.client.transaction.pod import pod_id
from penstock.client.transformer.config import TransformConfig
from penstock.client.transformer.out import AsyncOut
from penstock.client.transformer.transformer import AsyncTransformer, async_transform
from penstock.client.workers.config import WorkerConfig
from penstock.client.workers.pool import AsyncWorkerPool
from penstock.core.batch import Codec
from penstock.core.columns import Header
from penstock.core.types import Acks, MoveReason, Sync, TopicPartition
from penstock.errors import (
    Applied,
    ClusterError,
    ErrorCode,
    MisuseError,
    NotLeaderError,
    OffsetOutOfRangeError,
    OffsetRange,
    OverloadedError,
    PenstockError,
    ThrottledError,
    UnknownCallError,
    UnreachableError,
)

__all__ = [
    "EARLIEST",
    "LATEST",
    "AccessDecision",
    "Acks",
    "Admin",
    "Applied",
    "AsyncAdmin",
    "AsyncBranches",
    "AsyncConsumer",
    "AsyncOut",
    "AsyncProducer",
    "AsyncTransaction",
    "AsyncTransformer",
    "AsyncWorkerPool",
    "BatchOutcome",
    "BatchRun",
    "BlockingTransaction",
    "Branch",
    "Branches",
    "BrokerChange",
    "BrokerConfigEntry",
    "BrokerDescription",
    "BrokerPlacement",
    "BrokerQuiescence",
    "BytesSerializer",
    "ClientConfig",
    "ClusterDescription",
    "ClusterError",
    "Codec",
    "ColumnsDelivery",
    "ConfigEntry",
    "ConfigSource",
    "ConsumedBatch",
    "Consumer",
    "ConsumerConfig",
    "CopyDescription",
    "Cordon",
    "DecodeError",
    "DecodedRecord",
    "Decoder",
    "Delivery",
    "DeliveryError",
    "DeliveryReport",
    "ErrorCode",
    "FormatChange",
    "GroupDescription",
    "GroupListing",
    "GroupState",
    "HandlerFailedError",
    "Header",
    "JsonSerializer",
    "LedgerListing",
    "ListedOffset",
    "LogDescription",
    "LogDifference",
    "MemberDescription",
    "MisuseError",
    "MoveDescription",
    "MoveOutcome",
    "MoveReason",
    "MoveState",
    "MovesDescription",
    "NotLeaderError",
    "OffsetAndMetadata",
    "OffsetChange",
    "OffsetOutOfRangeError",
    "OffsetRange",
    "OffsetSpan",
    "OffsetSpec",
    "OpenTransaction",
    "OrphanOutcome",
    "OrphanedLog",
    "Out",
    "OverloadedError",
    "PartitionDescription",
    "PartitionTransactions",
    "PendingOffsets",
    "PenstockError",
    "PlaintextCaller",
    "PlaintextCallers",
    "Producer",
    "ProducerConfig",
    "ProtobufSerializer",
    "ReadResult",
    "RebalanceListener",
    "Record",
    "ReplicaMove",
    "ScrubDescription",
    "ScrubbedLog",
    "Serializer",
    "StringSerializer",
    "Sync",
    "ThrottledError",
    "TopicDescription",
    "TopicPartition",
    "Transaction",
    "TransactionBranch",
    "TransactionDescription",
    "TransactionError",
    "TransactionListing",
    "TransactionState",
    "TransformConfig",
    "Transformer",
    "UnknownCallError",
    "UnreachableError",
    "WorkerConfig",
    "WorkerPool",
    "async_transform",
    "avro_decoder",
    "decode_records",
    "json_decoder",
    "pod_id",
    "protobuf_decoder",
    "string_decoder",
    "transform",
]
