"""One broker that does not answer hides no full disk of another, and is not taken for well."""

import asyncio
from collections.abc import Iterable

from penstock.client.admin.disks import Disks, describe_disks
from penstock.client.model import BrokerDescription, LogDescription
from penstock.errors import UnreachableError

FREE = {0: 100, 1: 9, 2: None, 3: 9}
"""Of 100, of which 10 are kept; 2 does not answer."""


class Admin:
    """Answers nobody before it has been asked about all that live."""

    def __init__(self) -> None:
        self._all_asked = asyncio.Barrier(3)

    async def describe_logs(
        self, topics: Iterable[str] | None = None, *, broker_ids: Iterable[int] | None = None
    ) -> list[LogDescription]:
        assert topics is None
        assert broker_ids is not None
        await self._all_asked.wait()
        return [self._of(broker_id) for broker_id in broker_ids]

    def _of(self, broker_id: int) -> LogDescription:
        free = FREE[broker_id]
        if free is None:
            raise UnreachableError("no answer")
        return LogDescription(broker_id, (), free, 100, disk_reserve_bytes=10)


async def test_live_brokers_are_asked_at_once_each_by_itself() -> None:
    brokers = [
        BrokerDescription(broker_id=number, host="h", port=1, rack="", alive=number != 3)
        for number in FREE
    ]
    async with asyncio.timeout(60):
        assert await describe_disks(Admin(), brokers) == Disks((1,), {2: "no answer"})
