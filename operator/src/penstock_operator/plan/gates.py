"""What must be true before a broker is taken down, from the brokers' own answers."""

from collections.abc import Collection

from penstock_operator.model import BrokerFacts, Observed, PartitionState, PodState
from penstock_operator.objects import DesiredCluster


def trusted(observed: Observed) -> BrokerFacts | None:
    """The brokers' answer if it can be trusted: fresh, and of this very cluster."""
    facts = observed.brokers
    if facts is None or not facts.controller_reachable:
        return None
    recorded = observed.recorded_cluster_id
    return facts if not recorded or facts.cluster_id == recorded else None


def broker_ids(desired: DesiredCluster, observed: Observed) -> range:
    """Of brokers that the spec wants, or that are there still."""
    last = observed.last_broker(desired.names.broker)
    return range(max(desired.spec.brokers, last + 1))


def can_lose_one(facts: BrokerFacts) -> bool:
    """Every replica of every partition is in sync."""
    return facts.controller_reachable and not facts.not_full


def led_elsewhere(facts: BrokerFacts, broker_id: int) -> tuple[PartitionState, ...]:
    """Partitions that this broker leads and another in-sync replica could lead."""
    return tuple(
        each
        for each in facts.partitions
        if each.leader == broker_id and any(other != broker_id for other in each.isr)
    )


def is_serving(pod: PodState | None, facts: BrokerFacts) -> bool:
    """The pod exists, is ready, is not being deleted, and its broker has a session with the
    controller."""
    if pod is None or pod.terminating or not pod.ready:
        return False
    state = facts.brokers.get(pod.broker_id)
    return state is not None and state.alive


def some(partitions: tuple[PartitionState, ...], limit: int = 5) -> str:
    """The first few by name, and how many more."""
    names = [each.name for each in partitions[:limit]]
    more = len(partitions) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def brokers_named(ids: Collection[int]) -> str:
    """`broker 3`, or `brokers 3, 4`."""
    return f"broker{'s' if len(ids) != 1 else ''} {', '.join(str(one) for one in ids)}"
