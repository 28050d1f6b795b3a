"""The dead letters of a worker pool: records whose handler failed for good."""

import logging
from collections.abc import Sequence
from typing import Final

from penstock.client.admin.admin import AsyncAdmin
from penstock.client.config import AddressResolver
from penstock.client.dead_letters import (
    cause_text,
    handler_failed,
    letter_headers,
    letter_too_large,
    place_of,
    without_text,
)
from penstock.client.model import Record
from penstock.client.producer.producer import AsyncProducer
from penstock.errors import ErrorCode, PenstockError

_log: Final = logging.getLogger("penstock.client")


class Letters:
    """To one topic; "" = there is none, and a record that fails ends the pool."""

    def __init__(
        self, topic: str, bootstrap: str | Sequence[str], resolve_address: AddressResolver | None
    ) -> None:
        self._topic = topic
        self._bootstrap = bootstrap
        self._resolve_address = resolve_address
        self._producer: AsyncProducer | None = None
        self.sent = 0

    async def open(self) -> None:
        """Raises ClusterError(UNKNOWN_TOPIC) if the topic does not exist."""
        if self._topic:
            async with AsyncAdmin(self._bootstrap, resolve_address=self._resolve_address) as admin:
                await admin.describe_topics([self._topic])
            self._producer = AsyncProducer(self._bootstrap, resolve_address=self._resolve_address)

    async def send(self, record: Record, cause: Exception, attempts: int) -> None:
        """Returns when the letter is stored. Raises HandlerFailedError if there is no topic, or
        none that it fits into, and whatever else keeps a record from being stored."""
        text = cause_text(cause)
        if self._producer is None:
            raise handler_failed(record, text, attempts) from cause
        for said in (text, without_text(text)):
            headers = letter_headers(record, said, attempts)
            try:
                await (
                    await self._producer.send(
                        self._topic, record.value, record.key, headers=headers
                    )
                )
            except PenstockError as error:
                if error.code is not ErrorCode.RECORD_TOO_LARGE:
                    raise
                refusal = error
            else:
                break
        else:
            raise letter_too_large(record, text, attempts, self._topic, refusal) from cause
        self.sent += 1
        _log.warning("%s went to %s: %s", place_of(record), self._topic, text)

    async def close(self, timeout_s: float | None) -> None:
        """See `AsyncProducer.close`."""
        if self._producer is not None:
            await self._producer.close(timeout_s)
