"""Which node is which, and where each is reached."""

from __future__ import annotations

from typing import Final

from penstock.core.types import BrokerId

HOST: Final = "simulated"
CONTROLLERS: Final = (101, 102)


def broker_port(broker_id: BrokerId) -> int:
    return 9000 + broker_id


def replication_port(broker_id: BrokerId) -> int:
    return 9500 + broker_id


def broker_address(broker_id: BrokerId) -> str:
    return f"{HOST}:{broker_port(broker_id)}"


def controller_address(node: int) -> str:
    return f"{HOST}-controller:{9200 + node}"
