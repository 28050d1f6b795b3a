"""What brokers support beyond the first release, by name, and what must wait until all do.

    Register.features ─▶ BrokerRegistration ─▶ may this topic be created, may this broker register?

A topic of `FEATURE_OF_TOPIC` contains what older brokers cannot serve. It is created only if every
registered broker names its feature, including dead ones, as they may come back; from then on a
broker without it is refused at registration. Before that, a downgrade to the older release is
possible.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from penstock.core.types import BrokerId

TRANSACTIONS: Final = "transactions"
FEATURE_OF_TOPIC: Final[Mapping[str, str]] = {"__transactions": TRANSACTIONS}
BROKER_FEATURES: Final = (TRANSACTIONS,)
"""What brokers of this release register."""


def missing(feature: str, brokers: Mapping[BrokerId, Iterable[str]]) -> list[BrokerId]:
    """Brokers (id to what it names) without the feature, by id."""
    return sorted(broker for broker, features in brokers.items() if feature not in features)
