"""The Python client: producer, consumer and admin, an async core with a sync facade.

What belongs here: turning user calls into the protocol's messages and back, batching, retries
that keep order, prefetching, the picture of who leads what, group membership, conversion to
Arrow. What never may: knowledge of brokers' insides, of Spark or of the command line; imports of
numpy, pyarrow, zstandard or lz4 at import time; a second copy of any logic for the sync facade
(`sync.py` and its parts only wrap).

    user ──▶ sync facade ──▶ async core ──▶ penstock.rpc ──▶ brokers
             (one loop        accumulator → lanes (pure) → sender → produce links
              thread per      transactions (pure) → manager
              process)        fetch states (pure) → fetcher
                              membership (pure) → group link → group session → commits
                              cluster: metadata cache, connections

Start reading at `producer.py`, `consumer.py` or `admin.py`; the promises about order and
duplicates are kept in `lane.py`.
"""

from penstock.client.admin import AsyncAdmin
from penstock.client.branch_model import BatchOutcome, BatchRun, Branch
from penstock.client.branches import AsyncBranches
from penstock.client.config import ClientConfig, ConsumerConfig, ProducerConfig
from penstock.client.consumer import AsyncConsumer
from penstock.client.dead_letters import HandlerFailedError
from penstock.client.delivery import ColumnsDelivery, Delivery, DeliveryError
from penstock.client.group_model import (
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
    ClusterDescription,
    ConfigEntry,
    ConsumedBatch,
    DeliveryReport,
    ListedOffset,
    LogDescription,
    OffsetSpec,
    PartitionDescription,
    Record,
    TopicDescription,
)
from penstock.client.pod import pod_id
from penstock.client.producer import AsyncProducer
from penstock.client.serializers import (
    BytesSerializer,
    JsonSerializer,
    ProtobufSerializer,
    Serializer,
    StringSerializer,
)
from penstock.client.sync import Admin, Consumer
from penstock.client.sync_branches import Branches
from penstock.client.sync_producer import Producer, Transaction
from penstock.client.sync_transformer import Out, Transformer, transform
from penstock.client.transaction_admin_model import (
    BlockingTransaction,
    LedgerListing,
    OpenTransaction,
    PartitionTransactions,
    TransactionBranch,
    TransactionDescription,
    TransactionListing,
    TransactionState,
)
from penstock.client.transaction_contract import TransactionError
from penstock.client.transaction_handle import AsyncTransaction
from penstock.client.transform_config import TransformConfig
from penstock.client.transform_out import AsyncOut
from penstock.client.transformer import AsyncTransformer, async_transform
from penstock.core.batch import Codec
from penstock.core.columns import Header
from penstock.core.types import Acks, Sync, TopicPartition
from penstock.errors import PenstockError

__all__ = [
    "EARLIEST",
    "LATEST",
    "Acks",
    "Admin",
    "AsyncAdmin",
    "AsyncBranches",
    "AsyncConsumer",
    "AsyncOut",
    "AsyncProducer",
    "AsyncTransaction",
    "AsyncTransformer",
    "BatchOutcome",
    "BatchRun",
    "BlockingTransaction",
    "Branch",
    "Branches",
    "BrokerDescription",
    "BytesSerializer",
    "ClientConfig",
    "ClusterDescription",
    "Codec",
    "ColumnsDelivery",
    "ConfigEntry",
    "ConsumedBatch",
    "Consumer",
    "ConsumerConfig",
    "Delivery",
    "DeliveryError",
    "DeliveryReport",
    "GroupDescription",
    "GroupListing",
    "GroupState",
    "HandlerFailedError",
    "Header",
    "JsonSerializer",
    "LedgerListing",
    "ListedOffset",
    "LogDescription",
    "MemberDescription",
    "OffsetAndMetadata",
    "OffsetChange",
    "OffsetSpec",
    "OpenTransaction",
    "Out",
    "PartitionDescription",
    "PartitionTransactions",
    "PendingOffsets",
    "PenstockError",
    "Producer",
    "ProducerConfig",
    "ProtobufSerializer",
    "RebalanceListener",
    "Record",
    "Serializer",
    "StringSerializer",
    "Sync",
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
    "async_transform",
    "pod_id",
    "transform",
]
