"""A poll in the event loop for a user in another thread, which Ctrl-C may interrupt.

    user's thread   waits ── Ctrl-C ──▶ take_back ─┐
    event loop      poll ──▶ positions move        └──▶ back to where they were

Ctrl-C reaches the user's thread alone. If the poll has collected its records by then, they have
nowhere to go, and a commit would cover them: they would be skipped for ever. So the positions are
moved back, and the next poll returns these records.
"""

import asyncio
from collections.abc import Sequence

from penstock.client.consumer.assignment import Returned
from penstock.client.consumer.consumer import AsyncConsumer
from penstock.client.model import ConsumedBatch


class HandingOver:
    """Of one poll. Both methods run in the event loop."""

    def __init__(self, consumer: AsyncConsumer) -> None:
        self._consumer = consumer
        self._returned: Sequence[Returned] = ()
        self._task: asyncio.Task[object] | None = None
        self._nobody_waits = False

    async def poll(self, timeout_s: float | None, max_records: int | None) -> list[ConsumedBatch]:
        """As `AsyncConsumer.poll`."""
        if self._nobody_waits:
            return []
        self._task = asyncio.current_task()
        batches = await self._consumer.poll(timeout_s, max_records)
        self._returned = self._consumer.returned(batches)
        if self._nobody_waits:
            self._consumer.take_back(self._returned)
        return batches

    def take_back(self) -> None:
        """The user does not get the records, also if the poll ends only later. It ends now: Ctrl-C
        may have come before anybody could have cancelled it."""
        self._nobody_waits = True
        if self._task is not None and not self._task.cancelling():
            self._task.cancel()
        self._consumer.take_back(self._returned)
