"""Bounds that hold everywhere, in brokers and clients, whatever settings say.

Those of a record batch keep a reader's memory bounded (I23): a payload of a few bytes can claim any
record count, and each record costs a reader more than the byte it may have taken. Those of consumer
groups and transactions are here because clients check them before they call a coordinator.
"""

from typing import Final

MAX_RECORDS: Final = 1 << 20
"""Records in a batch, and headers in a batch."""
MAX_COVERED_OFFSETS: Final = (1 << 31) - 1
"""Offsets that a compacted batch covers, most of which no longer have a record."""
MAX_UNCOMPRESSED_BYTES: Final = 64 * 1024 * 1024
"""Size of the serialized `Records` message of a batch, before compression."""
MIN_TIMESTAMP_MS: Final = -62_135_596_800_000
"""0001-01-01 UTC."""
MAX_TIMESTAMP_MS: Final = 253_402_300_799_999
"""The last millisecond of 9999. Later timestamps are not dates to Python, SQL or Spark, and are
almost always microseconds or nanoseconds passed as milliseconds."""

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
"""What fields of messages carry."""
GROUP_ID_MAX_CHARS: Final = 249
"""Length of a group id, and of a member's instance id."""
DOCUMENT_BYTES_MAX: Final = 1024 * 1024
"""A document of the metadata store, with its key: Kubernetes' own limit for a ConfigMap's data, all
values together. Everywhere, so that a topic can go from one store to another."""
COPY_RATE_MAX: Final = 2**53
"""Bytes per second: no disk comes near, and every JSON reader has the exact number."""
REPLICA_CHANGES_MAX: Final = 1_000
"""Moves and cancellations of moves in one request."""
GENERATIONS_MAX: Final = 500
"""Openings and stops of a data directory that a controller takes at a registration."""
GENERATIONS_KEPT: Final = 350
"""So many a broker names: so often it may start in vain while no controller runs, and every one is
told apart. Controllers of earlier releases take no registration of more than 16 KiB."""
SESSION_TIMEOUT_MIN_MS: Final = 1_000
SESSION_TIMEOUT_MAX_MS: Final = 1_800_000
REBALANCE_TIMEOUT_MIN_MS: Final = 1_000
REBALANCE_TIMEOUT_MAX_MS: Final = 86_400_000
COMMIT_METADATA_MAX_BYTES: Final = 4_096
"""Text stored with a committed offset."""
COMMIT_PARTITIONS_MAX: Final = 10_000
"""In one request."""
COMMIT_METADATA_SUM_MAX: Final = 2 * 1024 * 1024
"""Characters of all texts in one request."""
TRANSACTIONAL_ID_MAX_BYTES: Final = 249
"""In UTF-8."""
ASSIGNORS: Final = ("uniform", "range")
"""The first is the default."""
