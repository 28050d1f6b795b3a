"""The call about this broker's settings: the value of each that counts now, and where it is from.

Only settings of the table in `penstock.core.settings`, none of which is secret: neither addresses
nor files of the command line.
"""

from collections.abc import Callable
from typing import Final

from penstock.core.settings import BROKER_SETTINGS
from penstock.core.types import BrokerId
from penstock.proto.v1 import admin_pb2 as pb
from penstock_broker.config import Settings

_COPY_RATE: Final = "replica.copy.bytes.per.second"


class Configs:
    """Answers for this broker alone: clients ask each one."""

    def __init__(
        self, broker_id: BrokerId, settings: Settings, copy_rate: Callable[[], int | None]
    ) -> None:
        """`copy_rate`: bytes per second that count now, None: no limit."""
        self._broker_id = broker_id
        self._settings = settings
        self._copy_rate = copy_rate

    def describe(self) -> pb.DescribeBrokerConfigsResponse:
        """All of them, in the order of the table."""
        values = dict(self._settings.items())
        sources = {
            key: pb.BROKER_CONFIG_SOURCE_START
            if key in self._settings.given
            else pb.BROKER_CONFIG_SOURCE_DEFAULT
            for key in values
        }
        rate = self._copy_rate() or 0
        if rate != values[_COPY_RATE]:
            values[_COPY_RATE] = rate
            sources[_COPY_RATE] = pb.BROKER_CONFIG_SOURCE_CLUSTER
        return pb.DescribeBrokerConfigsResponse(
            broker_id=self._broker_id,
            configs=[
                pb.BrokerConfigEntry(
                    name=setting.key,
                    value=str(values[setting.key]),
                    source=sources[setting.key],
                    default=setting.default,
                    documentation=setting.documentation,
                )
                for setting in BROKER_SETTINGS
            ],
        )
