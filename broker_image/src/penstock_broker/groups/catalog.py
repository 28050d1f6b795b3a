"""The topics that groups may read: a catalog of the applied image, for the machines."""

from penstock.core.groups.catalog import Catalog, CatalogTopic
from penstock.core.topic import is_internal
from penstock.core.types import BrokerId
from penstock_broker.metadata.image import ClusterView, Topic


def catalog_of(view: ClusterView) -> Catalog:
    """All topics of users, with the racks of their replicas if known."""
    racks = {broker_id: info.rack for broker_id, info in view.brokers.items() if info.rack}
    return Catalog.of(
        *(_topic(topic, racks) for topic in view.topics.values() if not is_internal(topic.name)),
        deleted=frozenset(view.deleted),
    )


def _topic(topic: Topic, racks: dict[BrokerId, str]) -> CatalogTopic:
    found: tuple[frozenset[str], ...] = ()
    if racks:
        found = tuple(
            frozenset(racks[broker] for broker in state.replicas if broker in racks)
            for state in topic.partitions
        )
    return CatalogTopic(topic.name, topic.topic_id, len(topic.partitions), found)


def is_same(known: Catalog, view: ClusterView) -> bool:
    """No topic was added, removed or extended; changed racks alone move nothing."""
    seen = {
        topic_id: (topic.name, len(topic.partitions))
        for topic_id, topic in view.topics.items()
        if not is_internal(topic.name)
    }
    return seen == {t: (topic.name, topic.partitions) for t, topic in known.topics.items()}
