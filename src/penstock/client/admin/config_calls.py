"""The admin's call about settings of brokers."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock.client.admin.asking import Asking, checked
from penstock.proto.v1 import admin_pb2 as pb


class ConfigSource(Enum):
    """Where the value of a broker's setting is from.

    START: given to its process, as `spec.config` of a Cluster is. CLUSTER: set for all brokers
    while they run.
    """

    DEFAULT = "default"
    START = "start"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class BrokerConfigEntry:
    """One setting of one broker. `source` None: one that this client does not know."""

    name: str
    value: str
    source: ConfigSource | None
    default: str
    documentation: str


_SOURCES: Final = {
    pb.BROKER_CONFIG_SOURCE_DEFAULT: ConfigSource.DEFAULT,
    pb.BROKER_CONFIG_SOURCE_START: ConfigSource.START,
    pb.BROKER_CONFIG_SOURCE_CLUSTER: ConfigSource.CLUSTER,
}


async def describe_broker_configs(
    asking: Asking, broker_ids: Iterable[int] | None
) -> dict[int, list[BrokerConfigEntry]]:
    """See `AsyncAdmin.describe_broker_configs`."""
    request = pb.DescribeBrokerConfigsRequest(cluster_id=await asking.cluster_id())
    return await asking.each(
        lambda connection: connection.admin.DescribeBrokerConfigs,
        request,
        lambda answer: [_from_wire(entry) for entry in checked(answer).configs],
        broker_ids,
    )


def _from_wire(entry: pb.BrokerConfigEntry) -> BrokerConfigEntry:
    source = _SOURCES.get(entry.source)
    return BrokerConfigEntry(entry.name, entry.value, source, entry.default, entry.documentation)
