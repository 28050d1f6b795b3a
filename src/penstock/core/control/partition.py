"""What is stored of one partition: who has replicas, who leads, and who shall have them instead.

    replicas   hold the partition: those in the ISR for certain
    target     shall be the replicas; empty: they are (the partition is settled)
    adding     copy it and are not replicas yet: never in the ISR, never elected
    dropping   once held or copied it, and have to delete that
    damaged    replicas that cannot serve all they once acknowledged

Replicas, adding and dropping are disjoint. Adding is a part of target; ISR, ELR, lossy and damaged
are parts of the replicas. The replicas change only at once, to target: until then whatever is
copied can be given up, and the ISR is never larger than the replication factor (ADR 64).
"""

from collections.abc import Mapping
from typing import Any

from penstock.core.types import NO_LEADER, BrokerId, LeaderEpoch, MoveReason, PartitionState
from penstock.core.value import value


@value(frozen=True, slots=True)
class PartitionDocument:
    """A partition's state, the other brokers that may lead it, and its move.

    `elr` (eligible leader replicas, KIP-966): left the ISR while that made it smaller than
    min.insync.replicas. From then on the high watermark stood still, so they hold every
    committed record and may be elected. Empty whenever the ISR is large enough.

    `lossy`: members of ISR or ELR that came back after losing unsynced data while there was no
    leader. They have what was fsynced, and are elected only when ISR and ELR are empty; first the
    one that stayed a member longest. Empty once there is a leader and the ISR is large enough.

    ISR, ELR and lossy are disjoint. `state.isr` is empty only while there is no leader.

    `target`: see the module; the first is the preferred leader. `why`: of the move, None without.
    """

    state: PartitionState
    elr: tuple[BrokerId, ...] = ()
    lossy: tuple[BrokerId, ...] = ()
    target: tuple[BrokerId, ...] = ()
    why: MoveReason | None = None

    @property
    def new(self) -> tuple[BrokerId, ...]:
        """Those of the target that are not replicas."""
        return tuple(one for one in self.target if one not in self.state.replicas)

    @property
    def uses_moves(self) -> bool:
        """Something in it needs FORMAT_MOVES."""
        state = self.state
        return bool(self.target or state.adding or state.dropping or state.damaged)


def partition_to_json(partition: PartitionDocument) -> dict[str, Any]:
    """`partition_from_json` reads it back."""
    state = partition.state
    parts = {
        "elr": partition.elr,
        "lossy": partition.lossy,
        "target": partition.target,
        "adding": state.adding,
        "dropping": state.dropping,
        "damaged": state.damaged,
    }
    return {
        "leader": state.leader,
        "epoch": state.leader_epoch,
        "isr": list(state.isr),
        "replicas": list(state.replicas),
        "version": state.version,
        **{name: list(part) for name, part in parts.items() if part},
        **({} if partition.why is None else {"why": partition.why.value}),
    }


def partition_from_json(entry: Mapping[str, Any], *, moves: bool) -> PartitionDocument:
    """`moves`: the document has a format with them.

    Raises KeyError, TypeError or ValueError for what cannot be.
    """
    parts: dict[str, tuple[BrokerId, ...]] = {}
    if moves:
        names = ("target", "adding", "dropping", "damaged")
        parts = {name: _brokers(entry.get(name, [])) for name in names}
    partition = PartitionDocument(
        PartitionState(
            leader=BrokerId(int(entry["leader"])),
            leader_epoch=LeaderEpoch(int(entry["epoch"])),
            isr=_brokers(entry["isr"]),
            replicas=_brokers(entry["replicas"]),
            version=int(entry["version"]),
            adding=parts.get("adding", ()),
            dropping=parts.get("dropping", ()),
            damaged=parts.get("damaged", ()),
        ),
        elr=_brokers(entry.get("elr", [])),
        lossy=_brokers(entry.get("lossy", [])),
        target=parts.get("target", ()),
        why=MoveReason(entry["why"]) if parts.get("target") else None,
    )
    state = partition.state
    if not state.replicas or not set(state.isr) <= set(state.replicas):
        raise ValueError(f"ISR {state.isr} is not part of replicas {state.replicas}")
    if state.leader != NO_LEADER and state.leader not in state.isr:
        raise ValueError(f"leader {state.leader} is not in the ISR {state.isr}")
    if moves:
        _check_moves(partition)
    return partition


def _check_moves(partition: PartitionDocument) -> None:
    state = partition.state
    named = (*state.replicas, *state.adding, *state.dropping)
    if len(set(named)) != len(named):
        raise ValueError(
            f"replicas {state.replicas}, adding {state.adding} and dropping {state.dropping} name "
            "a broker twice"
        )
    if len(set(partition.target)) != len(partition.target):
        raise ValueError(f"target {partition.target} names a broker twice")
    if not set(state.adding) <= set(partition.target):
        raise ValueError(f"adding {state.adding} is not part of target {partition.target}")
    for name, part in (
        ("elr", partition.elr),
        ("lossy", partition.lossy),
        ("damaged", state.damaged),
    ):
        if not set(part) <= set(state.replicas):
            raise ValueError(f"{name} {part} is not part of replicas {state.replicas}")


def _brokers(found: list[int]) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(int(broker_id)) for broker_id in found)
