"""What a drain must keep: plans within the hard goals (I38), and a proof that is true (I34).
Nothing is left of one that was taken back (I31).

    a plan, before it is submitted ─▶ planned      proven empty ─▶ proven      the end ─▶ check_end
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import count
from typing import TYPE_CHECKING

from penstock.client import MovesDescription, ReplicaMove
from penstock.core.balance import BrokerFacts, Facts, PartitionFacts
from penstock.core.control.documents import CLUSTER_KEY, ClusterDocument, decode_cluster
from penstock.core.types import BrokerId, MoveReason
from penstock_operator.plan.drain import BY
from penstock_sim.scheduler import RuleError

if TYPE_CHECKING:
    from penstock_sim.world import World


class DrainChecks:
    """Of one history; raises `RuleError`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.empty: BrokerId | None = None
        """The broker that was proven empty last, unless it may be used again."""
        self.begun = 0
        self.ended = 0
        self.taken_back = 0

    # ------------------------------------------------------------ plans

    def planned(
        self, moves: Iterable[ReplicaMove], facts: Facts, leaving: Collection[BrokerId]
    ) -> None:
        """Before it is submitted: by the facts that it was made from, it breaks no hard goal."""
        brokers = {one.id: one for one in facts.brokers}
        partitions = {one.partition: one for one in facts.partitions}
        for move in moves:
            known = partitions[move.where]
            problem = _broken(move, known, brokers, leaving)
            problem = problem or _crowded(move, known, brokers, leaving)
            if problem:
                raise RuleError(f"I38: a drain of {leaving} {problem}: {move}, {known} of {facts}")

    # ------------------------------------------------------------ the end of a drain

    def proven(self, broker: BrokerId) -> None:
        """It is said to be empty."""
        self.ended += 1
        left = self.left_on(broker)
        if left:
            raise RuleError(f"I34: broker {broker} is proven empty, and {left}")
        self.empty = broker

    def left_on(self, broker: BrokerId) -> str:
        """What names it, or what it has; "": nothing."""
        world = self._world
        for key in world.all_keys:
            document = world.checks.stored[key]
            state = document.state
            if broker in {*state.replicas, *state.adding, *state.dropping, *document.target}:
                return f"is named by {key}: {document}"
        slots = world.brokers[broker].disk.slots()
        return f"has data of {list(slots)}" if slots else ""

    def lifting(self, broker: BrokerId, moving: MovesDescription) -> None:
        """Its cordon is about to be lifted: by what was read, nothing leaves it any more."""
        for move in moving.moves:
            leaves = broker in move.replicas and broker not in move.target
            if move.target and leaves and move.reason is MoveReason.DRAIN:
                raise RuleError(f"I31: the drain of {broker} is taken back, and left {move}")

    def back(self, broker: BrokerId, moving: MovesDescription) -> None:
        """Nothing more is done about the drain of this broker, by what was read."""
        for one in moving.brokers:
            if one.broker_id == broker and one.cordon is not None and one.cordon.by == BY:
                raise RuleError(f"I31: the drain of {broker} is taken back, and left {one}")

    def check_end(self) -> None:
        """In a healed world: who was drained is empty, and no other is cordoned for a drain."""
        drained = {self.empty} - {None}
        for broker in drained:
            assert broker is not None
            left = self.left_on(broker)
            if left:
                raise RuleError(f"I34: broker {broker} was drained, and {left}")
        if self._cordoned() - drained:
            raise RuleError(f"I31: {self._cordoned()} are cordoned, drained are {drained}")

    def _cordoned(self) -> set[BrokerId]:
        """By whoever drains."""
        return {one for one, cordon in self.cluster.cordons.items() if cordon.by == BY}

    @property
    def cluster(self) -> ClusterDocument:
        """As it is stored."""
        return decode_cluster(self._world.meta.documents[CLUSTER_KEY].text, CLUSTER_KEY)


def _broken(
    move: ReplicaMove,
    known: PartitionFacts,
    brokers: Mapping[BrokerId, BrokerFacts],
    leaving: Collection[BrokerId],
) -> str:
    """Which hard goal a move breaks, racks aside; "": none."""
    target = {BrokerId(one) for one in move.target}
    if len(target) != len(move.target):
        return "names a broker twice"
    if target & {*leaving}:
        return "keeps a replica where none may be"
    if set(move.expected) != {*known.replicas} or len(target) != len(known.replicas):
        return "expects other replicas, or changes how many there are"
    closed = [one for one in target - {*known.replicas} if not _is_open(brokers.get(one))]
    return f"places a replica on {closed}, dead or cordoned," if closed else ""


def _is_open(broker: BrokerFacts | None) -> bool:
    return broker is not None and broker.alive and not broker.cordoned


def _crowded(
    move: ReplicaMove,
    known: PartitionFacts,
    brokers: Mapping[BrokerId, BrokerFacts],
    leaving: Collection[BrokerId],
) -> str:
    """Whether a rack gets more replicas than it should have, and had; "": none does."""
    usable = [one for one in brokers.values() if _is_open(one) and one.id not in leaving]
    members = Counter(one.rack for one in usable)
    if len(members) < 2:
        return ""
    wanted = min(len(known.replicas), len(usable))
    cap = next(cap for cap in count(1) if sum(min(cap, one) for one in members.values()) >= wanted)
    before = Counter(brokers[one].rack for one in known.replicas if one in brokers)
    after = Counter(brokers[BrokerId(one)].rack for one in move.target)
    crowded = [rack for rack, found in after.items() if found > max(cap, before[rack])]
    return f"crowds {crowded}" if crowded else ""
