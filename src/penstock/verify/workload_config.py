"""The settings of a recorded workload, and the receiver of its progress.

`workload.py` runs it. Producers without transactions and readers without a group take this whole
configuration; the other parts have smaller ones of their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from penstock.client.config import ClientOptions
from penstock.core.types import Acks, Sync


@dataclass(frozen=True, slots=True)
class WorkloadConfig:
    """The workload. `rate` records/s over all producers; 0 = as fast as possible.

    `keys` per producer. `batch_records` records of one key are sent at a time. `settle_s` bounds
    how long readers at the end wait for leaders and for progress. `delivery_timeout_ms` is the
    producers' setting. A topic that is not there is created with `replication_factor` and
    `topic_configs`; it keeps its records for ever, because records deleted by retention would seem
    lost. `options`: further settings of every client, such as its `ca_file`; not those that
    are fields here. `group` "" = no group; otherwise, this many
    `members` share the topic, each for about `churn_s` (0 = for ever). `transactions`: producers
    write in transactions, some of which they abort. `bank`: their transactions are transfers
    between `keys` accounts (`bank.py`). `pipe`: this many `members`, with churn, copy the topic to
    another one in transactions (`pipe.py`). `ring`: this many pass records on from each of two
    topics to the other one (`ring.py`).
    """

    bootstrap: str
    topic: str
    partitions: int = 6
    replication_factor: int = 3
    acks: Acks = Acks.ALL
    sync: Sync = Sync.OS
    producers: int = 2
    consumers: int = 1
    keys: int = 8
    record_bytes: int = 128
    batch_records: int = 100
    rate: int = 5_000
    settle_s: float = 60.0
    delivery_timeout_ms: int = 120_000
    topic_configs: Mapping[str, str] = field(default_factory=lambda: {"retention.ms": "-1"})
    options: ClientOptions = field(default_factory=ClientOptions)
    group: str = ""
    members: int = 3
    churn_s: float = 0.0
    transactions: bool = False
    bank: bool = False
    pipe: bool = False
    ring: bool = False


class Progress(Protocol):
    """Receives progress, from any thread."""

    def acknowledged(self, records: int) -> None: ...

    def read(self, records: int) -> None: ...


class SilentProgress:
    """Ignores progress."""

    def acknowledged(self, records: int) -> None:
        pass

    def read(self, records: int) -> None:
        pass
