"""The async consumer."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Self, Unpack

from penstock.client.config import ConsumerConfig, ConsumerOptions
from penstock.client.model import ConsumedBatch, Record
from penstock.core.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow


class AsyncConsumer:
    """Reads assigned partitions in order, without gaps."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        config: ConsumerConfig | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        raise NotImplementedError

    async def __aexit__(self, *exc: object) -> None:
        raise NotImplementedError

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        raise NotImplementedError

    def assignment(self) -> set[TopicPartition]:
        raise NotImplementedError

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        raise NotImplementedError

    async def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        raise NotImplementedError

    async def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        raise NotImplementedError

    async def seek_to_time(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Returns the offsets now positioned at; the end where no record is that young."""
        raise NotImplementedError

    async def poll(
        self, timeout_s: float = 1.0, max_records: int | None = None
    ) -> list[ConsumedBatch]:
        raise NotImplementedError

    async def poll_arrow(
        self,
        timeout_s: float = 1.0,
        max_records: int | None = None,
        *,
        include_headers: bool = False,
    ) -> "pyarrow.Table":
        """One chunk per batch; no rows if nothing came in time."""
        raise NotImplementedError

    def __aiter__(self) -> AsyncIterator[Record]:
        raise NotImplementedError

    async def pause(self, partitions: Iterable[TopicPartition]) -> None:
        raise NotImplementedError

    async def resume(self, partitions: Iterable[TopicPartition]) -> None:
        raise NotImplementedError

    async def position(self, partition: TopicPartition) -> int:
        raise NotImplementedError

    async def lag(self) -> dict[TopicPartition, int]:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError
