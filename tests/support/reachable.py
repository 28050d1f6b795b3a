"""The operator's brokers, on this machine."""

from penstock.client import AsyncAdmin
from penstock.client.config import ClientConfig
from penstock_operator.brokers import Brokers
from penstock_operator.objects import DesiredCluster


class Reachable(Brokers):
    """The brokers by an address of this machine instead of their pods' names."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self._client = AsyncAdmin(bootstrap, ClientConfig(request_timeout_ms=20_000))

    async def admin(self, desired: DesiredCluster) -> AsyncAdmin:
        return self._client

    async def close(self) -> None:
        await self._client.close()
