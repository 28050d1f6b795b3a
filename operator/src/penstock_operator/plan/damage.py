"""Damaged replicas: what the controller says of them, for the status. Nothing is done about them
here: brokers mend them, and a person accepts a loss."""

from penstock.core.control.damage import Damage, DamagedPartition, worst_first
from penstock_operator.model import Observed, Severity, Wait

REPLICA_DAMAGED = "ReplicaDamaged"
PARTITION_DAMAGED = "PartitionDamaged"
_SHOWN = 5


def damaged_partitions(observed: Observed) -> tuple[DamagedPartition, ...] | None:
    """The worst first; None: the controller does not say."""
    if observed.moves is None:
        return None
    found = [
        DamagedPartition(
            one.where.topic, one.where.partition, one.leader, tuple(one.isr), tuple(one.damaged)
        )
        for one in observed.moves.moving.moves
        if one.damaged
    ]
    return tuple(worst_first(found))


def plan_damage(observed: Observed) -> tuple[Wait, ...]:
    """What clients of damaged partitions wait for. Only where nobody sound is in sync has a person
    to act."""
    found = damaged_partitions(observed) or ()
    waits = []
    for one in found[:_SHOWN]:
        reason = REPLICA_DAMAGED if one.kind is Damage.MENDED else PARTITION_DAMAGED
        severity = Severity.BLOCKED if one.kind is Damage.ALONE else Severity.PROGRESS
        text = f"{one.text}; {one.remedy}" if one.remedy else one.text
        waits.append(Wait(reason, text, severity))
    if len(found) > _SHOWN:
        more = f"{len(found) - _SHOWN} more partitions have damaged replicas"
        waits.append(Wait(REPLICA_DAMAGED, more))
    return tuple(waits)


def condition_row(observed: Observed) -> tuple[str, str, str, str] | None:
    """Of the condition PartitionDamaged: type, status, reason, message. None: it is not known."""
    found = damaged_partitions(observed)
    if found is None:
        return None
    if not found:
        return (PARTITION_DAMAGED, "False", "NothingDamaged", "no replica is known to be damaged")
    told = plan_damage(observed)
    return (PARTITION_DAMAGED, "True", told[0].reason, "; ".join(one.message for one in told))
