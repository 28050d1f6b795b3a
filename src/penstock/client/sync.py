"""The sync facade: the async clients, driven from one background event loop per process.

Nothing is decided here. Every method hands its arguments to the async client of the same name
and blocks the calling thread until that is done; clients may be shared between threads.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Self, Unpack

from penstock.client.config import (
    ClientConfig,
    ClientOptions,
    ConsumerConfig,
    ConsumerOptions,
)
from penstock.client.model import (
    ClusterDescription,
    ConfigEntry,
    ConsumedBatch,
    ListedOffset,
    LogDescription,
    OffsetSpec,
    Record,
    TopicDescription,
)
from penstock.core.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow


class Consumer:
    """Reads assigned partitions in order, without gaps."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        config: ConsumerConfig | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        raise NotImplementedError

    def __exit__(self, *exc: object) -> None:
        raise NotImplementedError

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        raise NotImplementedError

    def assignment(self) -> set[TopicPartition]:
        raise NotImplementedError

    def seek(self, partition: TopicPartition, offset: int) -> None:
        raise NotImplementedError

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        raise NotImplementedError

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        raise NotImplementedError

    def seek_to_time(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Returns the offsets now positioned at; the end where no record is that young."""
        raise NotImplementedError

    def poll(self, timeout_s: float = 1.0, max_records: int | None = None) -> list[ConsumedBatch]:
        raise NotImplementedError

    def poll_arrow(
        self,
        timeout_s: float = 1.0,
        max_records: int | None = None,
        *,
        include_headers: bool = False,
    ) -> "pyarrow.Table":
        """One chunk per batch; no rows if nothing came in time."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Record]:
        raise NotImplementedError

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        raise NotImplementedError

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        raise NotImplementedError

    def position(self, partition: TopicPartition) -> int:
        raise NotImplementedError

    def lag(self) -> dict[TopicPartition, int]:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class Admin:
    """Creates, changes and describes topics; describes the cluster."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        config: ClientConfig | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        raise NotImplementedError

    def __exit__(self, *exc: object) -> None:
        raise NotImplementedError

    def create_topic(
        self,
        topic: str,
        partitions: int = 0,
        replication_factor: int = 0,
        configs: Mapping[str, str] | None = None,
        *,
        assignment: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> TopicDescription:
        raise NotImplementedError

    def create_partitions(
        self, topic: str, partitions: int, *, validate_only: bool = False
    ) -> None:
        raise NotImplementedError

    def delete_topic(self, topic: str, *, topic_id: str = "", validate_only: bool = False) -> None:
        raise NotImplementedError

    def list_topics(self, *, include_internal: bool = False) -> list[str]:
        raise NotImplementedError

    def describe_topics(self, topics: Iterable[str] | None = None) -> dict[str, TopicDescription]:
        raise NotImplementedError

    def alter_configs(
        self,
        topic: str,
        changes: Mapping[str, str] | None = None,
        *,
        unset: Iterable[str] = (),
        validate_only: bool = False,
    ) -> None:
        raise NotImplementedError

    def describe_configs(self, topic: str) -> list[ConfigEntry]:
        raise NotImplementedError

    def describe_cluster(self) -> ClusterDescription:
        raise NotImplementedError

    def list_offsets(
        self, offsets: Mapping[TopicPartition, OffsetSpec | int]
    ) -> dict[TopicPartition, ListedOffset]:
        """Per partition: EARLIEST, LATEST, or a timestamp in ms."""
        raise NotImplementedError

    def delete_records(
        self, before_offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """-1 = up to the high watermark. Returns the new log starts."""
        raise NotImplementedError

    def elect_leaders(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        away_from_broker: int | None = None,
    ) -> int:
        """Returns how many partitions moved."""
        raise NotImplementedError

    def describe_logs(
        self, topics: Iterable[str] | None = None, *, broker_ids: Iterable[int] | None = None
    ) -> list[LogDescription]:
        """One description per broker that is alive."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
