"""Topics, configs and the cluster, asked of any broker."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Self, Unpack

from penstock.client.config import ClientConfig, ClientOptions
from penstock.client.model import (
    ClusterDescription,
    ConfigEntry,
    ListedOffset,
    LogDescription,
    OffsetSpec,
    TopicDescription,
)
from penstock.core.types import TopicPartition


class AsyncAdmin:
    """Creates, changes and describes topics; describes the cluster."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        config: ClientConfig | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        raise NotImplementedError

    async def __aexit__(self, *exc: object) -> None:
        raise NotImplementedError

    async def create_topic(
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

    async def create_partitions(
        self, topic: str, partitions: int, *, validate_only: bool = False
    ) -> None:
        raise NotImplementedError

    async def delete_topic(
        self, topic: str, *, topic_id: str = "", validate_only: bool = False
    ) -> None:
        raise NotImplementedError

    async def list_topics(self, *, include_internal: bool = False) -> list[str]:
        raise NotImplementedError

    async def describe_topics(
        self, topics: Iterable[str] | None = None
    ) -> dict[str, TopicDescription]:
        raise NotImplementedError

    async def alter_configs(
        self,
        topic: str,
        changes: Mapping[str, str] | None = None,
        *,
        unset: Iterable[str] = (),
        validate_only: bool = False,
    ) -> None:
        raise NotImplementedError

    async def describe_configs(self, topic: str) -> list[ConfigEntry]:
        raise NotImplementedError

    async def describe_cluster(self) -> ClusterDescription:
        raise NotImplementedError

    async def list_offsets(
        self, offsets: Mapping[TopicPartition, OffsetSpec | int]
    ) -> dict[TopicPartition, ListedOffset]:
        """Per partition: EARLIEST, LATEST, or a timestamp in ms."""
        raise NotImplementedError

    async def delete_records(
        self, before_offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """-1 = up to the high watermark. Returns the new log starts."""
        raise NotImplementedError

    async def elect_leaders(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        away_from_broker: int | None = None,
    ) -> int:
        """Returns how many partitions moved."""
        raise NotImplementedError

    async def describe_logs(
        self, topics: Iterable[str] | None = None, *, broker_ids: Iterable[int] | None = None
    ) -> list[LogDescription]:
        """One description per broker that is alive."""
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError
