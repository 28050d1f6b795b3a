"""How many broker pods there should be now.

Up: at once; the controller places new partitions on new brokers. Down: only when the brokers
themselves report that the brokers to remove hold no replica (I26); until draining exists, a person
has to move or delete the replicas.
"""

from penstock_operator.model import BrokerFacts, ForgetBroker, Object, Observed, Severity, Wait
from penstock_operator.objects import DesiredCluster
from penstock_operator.plan.gates import trusted


def wanted_replicas(
    desired: DesiredCluster, observed: Observed, live: Object | None
) -> tuple[int, tuple[Wait, ...]]:
    """Replicas of the StatefulSet, and why they differ from the spec's."""
    wanted = desired.spec.brokers
    present = wanted if live is None else int(live["spec"].get("replicas", 1))
    # A StatefulSet that was orphaned to change its template does not exist for a moment; its pods
    # do.
    present = max([present, *(broker_id + 1 for broker_id in observed.pods)])
    if present <= wanted:
        return wanted, ()
    facts = trusted(observed)
    if facts is None:
        why = observed.brokers_problem or "no controller is reachable"
        text = (
            f"scaling down to {wanted} needs the brokers' confirmation that nothing is lost: {why}"
        )
        return present, (Wait("BrokersDoNotAnswer", text),)
    held = {broker_id: _held(facts, broker_id) for broker_id in range(wanted, present)}
    full = {broker_id: names for broker_id, names in held.items() if names}
    if not full:
        return wanted, ()
    return present, tuple(_refusal(broker_id, names, wanted) for broker_id, names in full.items())


def forgotten(desired: DesiredCluster, observed: Observed) -> tuple[ForgetBroker, ...]:
    """Brokers beyond the spec that no longer exist and hold nothing."""
    facts = trusted(observed)
    if facts is None:
        return ()
    return tuple(
        ForgetBroker(broker_id)
        for broker_id, state in sorted(facts.brokers.items())
        if broker_id >= desired.spec.brokers
        and broker_id not in observed.pods
        and not state.alive
        and not _held(facts, broker_id)
    )


def _held(facts: BrokerFacts, broker_id: int) -> list[str]:
    return [each.name for each in facts.partitions if broker_id in each.replicas]


def _refusal(broker_id: int, names: list[str], wanted: int) -> Wait:
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    text = (
        f"scaling down to {wanted} brokers is refused: broker {broker_id} holds replicas of "
        f"{shown}; set spec.brokers to {broker_id + 1} or more, or delete these topics"
    )
    return Wait("BrokersHoldReplicas", text, Severity.BLOCKED)
