"""The async producer."""

from collections.abc import Sequence
from typing import Any, Self, Unpack

from penstock.client.config import ProducerConfig, ProducerOptions
from penstock.client.delivery import ColumnsDelivery, Delivery
from penstock.core.columns import Header


class AsyncProducer:
    """Sends records to topics, batched, in order, without duplicates."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        config: ProducerConfig | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        raise NotImplementedError

    async def __aexit__(self, *exc: object) -> None:
        raise NotImplementedError

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] | None = None,
    ) -> Delivery:
        """Waits for buffer space (and, once per topic, metadata), not for the delivery."""
        raise NotImplementedError

    def send_nowait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] | None = None,
    ) -> Delivery:
        """Never waits: BUFFER_FULL when there is no room or the topic is not known yet."""
        raise NotImplementedError

    async def send_columns(
        self,
        topic: str,
        values: Any,
        keys: Any = None,
        *,
        timestamps_ms: Any = None,
        partition: int | None = None,
        headers: Sequence[Sequence[Header]] | None = None,
    ) -> ColumnsDelivery:
        raise NotImplementedError

    async def flush(self, timeout_s: float | None = None) -> None:
        raise NotImplementedError

    async def close(self, timeout_s: float | None = None) -> int:
        """Flushes; returns how many records were not delivered."""
        raise NotImplementedError
