"""A Kubernetes and brokers of data: carries actions out, and goes on by itself.

For the properties of the plan. Faithful in what the plan rests on: a StatefulSet makes missing
pods from its template, pods take time to become ready, a broker that was down is out of sync and
catches up later, leaderships move when asked, deletions need the right uid. A partition that moves
switches when it likes, and its former broker deletes the log some time after that.
"""

import pickle
import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from penstock.client import (
    BrokerPlacement,
    CopyDescription,
    Cordon,
    MoveDescription,
    MovesDescription,
    MoveState,
    ReplicaMove,
)
from penstock.client.admin.move_facts import ClusterFacts
from penstock.core.balance import BrokerFacts as PlannedBroker
from penstock.core.balance import Facts, PartitionFacts
from penstock.core.manifest import ClusterSpec
from penstock.core.manifest.objects import SecurityMode
from penstock.core.types import BrokerId, MoveReason, TopicPartition
from penstock.kubernetes.quantity import quantity
from penstock_operator.format_model import FinalizeFormat, FormatSaid
from penstock_operator.hibernation_model import Hibernate, Record, Rest
from penstock_operator.model import (
    Action,
    AnswerRequest,
    Apply,
    BrokerFacts,
    BrokerState,
    CordonBrokers,
    ForgetBroker,
    GrowClaim,
    MarkRack,
    MoveLeaders,
    MoveReplicas,
    Observed,
    OrphanSet,
    PartitionState,
    PlaintextFacts,
    Plan,
    PodState,
    RemoveObject,
    RestartPod,
    TopicState,
)
from penstock_operator.move_model import MarkSpread, MoveFacts, SetThrottle
from penstock_operator.names import FORGET_BROKER, REPLACE_VOLUME, TEMPLATE_HASH, Names
from penstock_operator.objects import DesiredCluster, Installation
from penstock_operator.objects.broker import template_hash
from penstock_operator.proofs import Proofs, is_empty
from penstock_operator.volume_model import (
    BoundNode,
    ClaimState,
    DropClaim,
    MarkClaim,
    NodeState,
    OwnClaim,
    ReplaceVolume,
)

_T = TypeVar("_T")
NAMES = Names("flights", "default")
_IDLE_PASSES = 5
"""So many without an action while nothing becomes ready: no later one has any."""


def desired(brokers: int = 3, **changes: Any) -> DesiredCluster:
    """A Cluster's wish; `changes` replace its fields, `spec_…` those of its spec."""
    spec = {key.removeprefix("spec_"): changes.pop(key) for key in [*changes] if key[:5] == "spec_"}
    if "image" in changes:
        spec["image"] = changes["image"]
    base = DesiredCluster(
        names=NAMES,
        uid="cluster-uid",
        generation=1,
        spec=ClusterSpec(brokers=brokers, **spec),
        installation=Installation("penstock-broker:1"),
        image="penstock-broker:1",
    )
    return replace(base, **changes)


@dataclass
class World:
    """`random` decides how long things take. `reachable`: the brokers answer."""

    random: random.Random
    objects: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    pods: dict[int, PodState] = field(default_factory=dict)
    claims: dict[int, ClaimState] = field(default_factory=dict)
    alive: set[int] = field(default_factory=set)
    partitions: list[PartitionState] = field(default_factory=list)
    reachable: bool = True
    expandable: bool = True
    racks: dict[str, str] = field(default_factory=dict)
    broker_racks: dict[int, str] = field(default_factory=dict)
    """As brokers have registered."""
    uids: int = 0
    registered: set[int] = field(default_factory=set)
    fresh: set[int] = field(default_factory=set)
    """Registered with an empty directory, and not marked as spread since."""
    plaintext: dict[int, PlaintextFacts] | None = None
    """Who calls in plaintext, as the brokers say."""
    unknown: dict[str, str] = field(default_factory=dict)
    """Kinds that the API server does not list, and what it says."""
    format: int = 2
    versions: dict[int, str] = field(default_factory=dict)
    """Releases of brokers, unless it is 1; "": it has not registered with this controller yet."""
    reads: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Formats that brokers read, unless it is both."""
    format_said: FormatSaid = field(default_factory=FormatSaid)
    """What the status says of an upgrade that is not finalized."""
    cordons: dict[int, Cordon] = field(default_factory=dict)
    targets: dict[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    reasons: dict[TopicPartition, MoveReason] = field(default_factory=dict)
    copies: dict[TopicPartition, tuple[CopyDescription, ...]] = field(default_factory=dict)
    """Of `targets`; those that are not here are drains."""
    logs: dict[int, set[TopicPartition]] = field(default_factory=dict)
    """Logs of former replicas, by the broker that still has them."""
    lost: set[tuple[int, TopicPartition]] = field(default_factory=set)
    """What was on brokers when their pods were stopped by scaling down."""
    unfaithful: set[int] = field(default_factory=set)
    """Brokers whose former logs are not in the documents, as a disk from before would be."""
    damaged: dict[TopicPartition, set[int]] = field(default_factory=dict)
    """Brokers whose replica is damaged."""
    request: str = ""
    """The annotation that asks for a new volume."""
    requests: dict[str, str] = field(default_factory=dict)
    """Other annotations that ask for something, as they were answered; "": taken back."""
    volumes: dict[int, BoundNode] = field(default_factory=dict)
    """Where the volumes are whose pods no node can take."""
    dropped: list[int] = field(default_factory=list)
    """Brokers that were let go, and whose claim was deleted, in order."""
    replaced: list[int] = field(default_factory=list)
    """Brokers whose volume was deleted, in order."""
    hibernating: bool = False
    unquiet: str = ""
    """What keeps brokers from being at rest; empty: they are."""
    record: Record = field(default_factory=Record)
    """What the status says of hibernation; `since_s`: since when."""
    since_s: float = 0.0
    copy_rate: int | None = None
    copy_rate_by: str | None = ""
    """What manages it; None: the controller is too old to remember."""
    seconds: float = 0.0
    proofs: Proofs = field(init=False)

    def __post_init__(self) -> None:
        self.proofs = Proofs(lambda: self.seconds)

    # ── What the plan sees ────────────────────────────────────────────────────────────────

    @property
    def at(self) -> str:
        """The wall's clock."""
        moment = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)
        return moment.strftime("%Y-%m-%dT%H:%M:%SZ")

    def observed(self) -> Observed:
        answer = self.reachable and bool(self.alive)
        seen = Observed(
            objects=_copied(self.objects),
            pods=dict(self.pods),
            claims=dict(self.claims),
            brokers=self.facts() if answer else None,
            brokers_problem="" if self.reachable else "no route",
            racks=dict(self.racks),
            volumes=dict(self.volumes),
            recorded_cluster_id="id",
            trust="a CA",
            plaintext=self._told(),
            unknown=dict(self.unknown),
            stored=frozenset() if answer else self.holders(),
            at=self.at,
            format_said=self.format_said,
            rest=Rest(
                self.record,
                self.seconds - self.since_s,
                proven=self.hibernating and not self.unquiet,
                waiting_for=self.unquiet,
            ),
        )
        return replace(seen, moves=self.moves()) if answer else seen

    def moves(self) -> MoveFacts:
        """What the controller and the brokers say of moves. All brokers may be asked to go."""
        placements = tuple(
            BrokerPlacement(
                broker_id=each,
                directory_id=f"directory-{each}",
                rack="",
                alive=each in self.alive,
                fresh=each in self.fresh,
                cordon=self.cordons.get(each),
                software_version=self.versions.get(each, "1"),
                formats=self.reads.get(each, (1, 2)),
            )
            for each in sorted(self.registered)
        )
        described = (self._described(each) for each in self.partitions)
        moving = MovesDescription(
            moves=tuple(each for each in described if each.target or each.dropping or each.damaged),
            brokers=placements,
            format=self.format,
            newest_format=2,
            paused=False,
            copy_rate=self.copy_rate,
            copy_rate_by=self.copy_rate_by,
        )
        facts = Facts(
            brokers=tuple(
                PlannedBroker(
                    id=BrokerId(each.broker_id),
                    alive=each.alive,
                    cordoned=each.cordon is not None and each.cordon.placement,
                    fresh=each.fresh,
                )
                for each in placements
            ),
            partitions=tuple(
                PartitionFacts(
                    partition=where_of(each),
                    replicas=_ids(each.replicas),
                    isr=_ids(each.isr),
                    leader=BrokerId(each.leader),
                    target=_ids(self.targets.get(where_of(each), ())),
                )
                for each in self.partitions
            ),
        )
        seen = ClusterFacts(facts, {each.topic: "id" for each in self.partitions}, moving)
        logs = {each: len(self.stored(each)) for each in self.alive}
        found = MoveFacts(moving, seen, logs)
        empty = {each: "" for each in self.registered if is_empty(found, each)}
        return replace(found, proven=self.proofs.proven(empty))

    def holders(self) -> frozenset[int]:
        """Brokers that have replicas by the stored metadata."""
        return frozenset(one for each in self.partitions for one in each.replicas)

    def stored(self, broker_id: int) -> set[TopicPartition]:
        """The logs on a broker's disk."""
        held = {where_of(each) for each in self.partitions if broker_id in each.replicas}
        return held | self.logs.get(broker_id, set())

    def _described(self, partition: PartitionState) -> MoveDescription:
        where = where_of(partition)
        target = self.targets.get(where, ())
        return MoveDescription(
            where=where,
            topic_id="id",
            state=MoveState.COPYING if target else MoveState.SETTLED,
            reason=self.reasons.get(where, MoveReason.DRAIN) if target else None,
            leader=partition.leader,
            replicas=partition.replicas,
            isr=partition.isr,
            target=target,
            adding=tuple(each for each in target if each not in partition.replicas),
            dropping=tuple(
                each
                for each, logs in sorted(self.logs.items())
                if where in logs and each not in self.unfaithful
            ),
            damaged=tuple(sorted(self.damaged.get(where, ()))),
            waiting_for="",
            copies=self.copies.get(where, ()),
        )

    def _told(self) -> dict[int, PlaintextFacts] | None:
        """Only brokers that run, and serve plaintext beside TLS, say who calls them."""
        if self.plaintext is None:
            return None
        able = {at for at, pod in self.pods.items() if pod.mode is SecurityMode.MIGRATE}
        return {at: one for at, one in self.plaintext.items() if at in able & self.alive}

    def facts(self) -> BrokerFacts:
        brokers = {
            each: BrokerState(
                each, NAMES.broker_host(each), each in self.alive, self.broker_racks.get(each, "")
            )
            for each in self.registered
        }
        factors: dict[str, tuple[int, ...]] = {}
        for one in self.partitions:
            factors[one.topic] = (*factors.get(one.topic, ()), len(one.replicas))
        topics = {name: TopicState(name, "id", each, {}) for name, each in factors.items()}
        parts = tuple(self.partitions)
        return BrokerFacts("id", True, brokers, parts, topics, self.hibernating)

    def remember(self, plan: Plan) -> None:
        """What a plan says of hibernation and formats goes into the status."""
        if plan.hibernation is not None and plan.hibernation != self.record:
            if plan.hibernation.stage is not self.record.stage:
                self.since_s = self.seconds
            self.record = plan.hibernation
        if plan.format is not None:
            since = self.format_said.since or self.at
            self.format_said = FormatSaid(plan.format.reason, since if plan.format.holds else "")

    # ── What actions do ───────────────────────────────────────────────────────────────────

    def carry_out(self, action: Action) -> None:
        match action:
            case Apply():
                self._apply(_copied(action.object))
            case RestartPod():
                assert self.pods[action.broker_id].uid == action.uid
                self._stop(action.broker_id)
            case GrowClaim():
                self._grow(action.claim, int(quantity(action.size) or 0))
            case OrphanSet():
                del self.objects["StatefulSet", action.name]
            case RemoveObject():
                del self.objects[action.kind, action.name]
            case ReplaceVolume():
                self._replace(action)
            case MarkClaim() | DropClaim() | OwnClaim():
                self._alter_claim(action)
            case AnswerRequest():
                self._answer(action)
            case MarkRack():
                broker_id = int(action.pod.rpartition("-")[2])
                self.pods[broker_id] = replace(self.pods[broker_id], rack=action.rack)
            case _:
                self._tell_brokers(action)

    def _answer(self, action: AnswerRequest) -> None:
        if action.annotation == REPLACE_VOLUME:
            self.request = action.text or ""
        else:
            self.requests[action.annotation] = action.text or ""

    def _tell_brokers(self, action: Action) -> None:
        match action:
            case Hibernate():
                self.hibernating = action.hibernating
            case MoveLeaders():
                self.partitions = [
                    self._led_elsewhere(p, action.broker_id) for p in self.partitions
                ]
            case ForgetBroker():
                assert not any(action.broker_id in each.replicas for each in self.partitions)
                self.registered.discard(action.broker_id)
                self.fresh.discard(action.broker_id)
                self.cordons.pop(action.broker_id, None)
            case CordonBrokers():
                self._cordon(action)
            case FinalizeFormat():
                assert self.registered <= self.alive, "the controller refuses it"
                assert all(action.to in self.reads.get(one, (1, 2)) for one in self.alive)
                self.format = action.to
            case MarkSpread():
                self.fresh -= {change.broker_id for change in action.changes if change.spread}
            case SetThrottle():
                self._set_throttle(action)
            case MoveReplicas():
                for move in action.moves:
                    self.alter(move, action.reason)

    def _alter_claim(self, action: MarkClaim | DropClaim | OwnClaim) -> None:
        """A claim of another uid, or another version, is refused, as the API server does."""
        broker_id, claim = action.broker_id, self.claims.get(action.broker_id)
        if claim is None or claim.uid != action.claim_uid:
            return
        if isinstance(action, MarkClaim):
            version = str(int(claim.version or "0") + 1)
            self.claims[broker_id] = replace(claim, emptied=action.emptied, version=version)
        elif claim.version != action.version:
            return
        elif isinstance(action, OwnClaim):
            version = str(int(claim.version or "0") + 1)
            self.claims[broker_id] = replace(claim, owners=action.owners, version=version)
        else:
            assert broker_id not in self.pods, "a pod has it mounted"
            assert broker_id in self.registered, "the registration goes last"
            assert not self.stored(broker_id), "something is on it"
            self.dropped.append(broker_id)
            del self.claims[broker_id]

    def _cordon(self, action: CordonBrokers) -> None:
        for change in action.changes:
            assert change.cordon is not None
            self.cordons.pop(change.broker_id, None)
            if change.cordon.placement or change.cordon.leadership:
                self.cordons[change.broker_id] = change.cordon

    def _set_throttle(self, action: SetThrottle) -> None:
        self.copy_rate = action.copy_rate
        if self.copy_rate_by is not None:
            self.copy_rate_by = "" if action.copy_rate is None else action.by

    def alter(self, move: ReplicaMove, reason: MoveReason) -> None:
        """As the controller does: refused if the replicas are others, cancelled without target."""
        found = next(each for each in self.partitions if where_of(each) == move.where)
        if not move.target:
            ended = self.targets.pop(move.where, ())
            if self.reasons.get(move.where) is MoveReason.SPREAD:
                self.fresh -= set(ended) - set(found.replicas)
        elif set(move.target) == set(found.replicas):
            self.targets.pop(move.where, None)
        elif set(move.expected) == set(found.replicas):
            new = set(move.target) - set(found.replicas) - set(self.targets.get(move.where, ()))
            assert not any(self.cordons[each].placement for each in new if each in self.cordons)
            self.targets[move.where] = move.target
            self.reasons[move.where] = reason

    def _replace(self, action: ReplaceVolume) -> None:
        """With the claim goes all that the broker has, and its seats when it comes back."""
        broker_id = action.broker_id
        assert self.claims[broker_id].uid == action.claim_uid
        del self.claims[broker_id]
        self.volumes.pop(broker_id, None)
        self.replaced.append(broker_id)
        if action.pod:
            assert self.pods[broker_id].uid == action.pod_uid
            del self.pods[broker_id]
        self.partitions = [
            replace(each, isr=tuple(one for one in each.isr if one != broker_id))
            for each in self.partitions
        ]

    def lose_node(self, broker_id: int, state: NodeState = NodeState.LOST) -> None:
        """The node of a broker is gone, and its volume with it; the next pod finds none."""
        self._stop(broker_id)
        pod = self.pod(
            broker_id, self.pods[broker_id].template_hash, ready=False, trouble="no room"
        )
        self.pods[broker_id] = replace(pod, node="", unschedulable=True)
        self.volumes[broker_id] = BoundNode(self.claims[broker_id].uid, f"node-{broker_id}", state)

    def _grow(self, name: str, size: int) -> None:
        for broker_id, claim in self.claims.items():
            if claim.name == name:
                self.claims[broker_id] = replace(claim, requested=size)

    def _apply(self, wanted: dict[str, Any]) -> None:
        key = (wanted["kind"], wanted["metadata"]["name"])
        live = self.objects.get(key)
        if live is None:
            wanted["metadata"]["uid"] = self.uid()
        else:
            wanted["metadata"]["uid"] = live["metadata"]["uid"]
            if "status" in live:
                wanted["status"] = live["status"]
            if key[0] == "StatefulSet":
                before = live["spec"]["volumeClaimTemplates"]
                assert wanted["spec"]["volumeClaimTemplates"] == before, "immutable"
        generation = 1 if live is None else live["metadata"]["generation"] + 1
        wanted["metadata"]["generation"] = generation
        self.objects[key] = wanted

    def _stop(self, broker_id: int) -> None:
        stopping = replace(self.pods[broker_id], terminating=True, ready=False, ready_since="")
        self.pods[broker_id] = stopping
        self.alive.discard(broker_id)
        if self.hibernating:
            return  # it keeps its seats
        self.partitions = [
            self._led_elsewhere(
                replace(p, isr=tuple(i for i in p.isr if i != broker_id)), broker_id
            )
            if len(p.isr) > 1
            else p
            for p in self.partitions
        ]

    def _led_elsewhere(self, partition: PartitionState, broker_id: int) -> PartitionState:
        if partition.leader != broker_id:
            return partition
        others = [each for each in partition.isr if each != broker_id and each in self.alive]
        return replace(partition, leader=others[0]) if others else partition

    # ── What happens by itself ────────────────────────────────────────────────────────────

    def go_on(self) -> None:
        """A little time passes."""
        self.seconds += 1.0
        self._controllers()
        self._moves_go_on()
        live = self.objects.get(("StatefulSet", NAMES.broker))
        for broker_id, pod in [*self.pods.items()]:
            if pod.terminating and self.maybe():
                del self.pods[broker_id]
            elif not (pod.terminating or pod.ready or pod.trouble) and self.maybe():
                self.pods[broker_id] = replace(pod, ready=True, ready_since=self.at)
                self.alive.add(broker_id)
                if broker_id not in self.registered and self.format > 1:
                    self.fresh.add(broker_id)
                self.registered.add(broker_id)
        if live is not None:
            self._statefulset(live)
        self.partitions = [self._later(each) for each in self.partitions]
        for broker_id, claim in self.claims.items():
            if claim.capacity < claim.requested and self.maybe():
                self.claims[broker_id] = replace(claim, capacity=claim.requested)

    def _moves_go_on(self) -> None:
        """Copies that are complete switch; brokers delete what they have no seat for."""
        self.partitions = [self._switched(each) for each in self.partitions]
        for broker_id in self.alive & self.logs.keys():
            if self.maybe():
                del self.logs[broker_id]

    def _switched(self, partition: PartitionState) -> PartitionState:
        where = where_of(partition)
        target = self.targets.get(where, ())
        able = set(target) <= self.alive and set(partition.isr) & self.alive
        if not target or not able or not self.maybe():
            return partition
        del self.targets[where]
        for broker_id in set(partition.replicas) - set(target):
            self.logs.setdefault(broker_id, set()).add(where)
        leader = partition.leader if partition.leader in target else target[0]
        return replace(partition, replicas=target, isr=target, leader=leader)

    def _later(self, partition: PartitionState) -> PartitionState:
        missing = [i for i in partition.replicas if i not in partition.isr and i in self.alive]
        if missing and self.maybe():
            partition = replace(partition, isr=(*partition.isr, missing[0]))
        if partition.leader in self.alive:
            return partition
        if self.hibernating:
            return replace(partition, leader=-1)
        leaders = [i for i in partition.isr if i in self.alive]
        return replace(partition, leader=leaders[0] if leaders else -1)

    def _statefulset(self, live: dict[str, Any]) -> None:
        replicas = live["spec"]["replicas"]
        template = live["spec"]["template"]["metadata"]["annotations"][TEMPLATE_HASH]
        size = live["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"]
        for broker_id in range(replicas):
            if broker_id not in self.pods:
                made = self.pod(broker_id, template, ready=False)
                mode = SecurityMode.of_pod(live["spec"]["template"])
                (container,) = live["spec"]["template"]["spec"]["containers"]
                self.pods[broker_id] = replace(made, mode=mode, image=container["image"])
            if broker_id not in self.claims:
                self.claims[broker_id] = self.claim(broker_id, int(quantity(size) or 0))
        for broker_id in [i for i in self.pods if i >= replicas]:
            if not self.pods[broker_id].terminating:
                self.lost |= {(broker_id, each) for each in self.stored(broker_id)}
                self._stop(broker_id)

    def _controllers(self) -> None:
        live = self.objects.get(("Deployment", NAMES.controller))
        if live is not None and self.maybe():
            replicas = live["spec"]["replicas"]
            live["status"] = {
                "observedGeneration": live["metadata"]["generation"],
                "updatedReplicas": replicas,
                "availableReplicas": replicas,
                "replicas": replicas,
            }

    @property
    def is_still(self) -> bool:
        """Nothing that was made waits for becoming ready."""
        live = self.objects.get(("Deployment", NAMES.controller), {})
        made = "status" in live and bool(self.pods)
        return made and all(pod.ready for pod in self.pods.values())

    def maybe(self) -> bool:
        return self.random.random() < 0.5

    def uid(self) -> str:
        self.uids += 1
        return f"uid-{self.uids}"

    def pod(self, broker_id: int, template: str, *, ready: bool, trouble: str = "") -> PodState:
        return PodState(
            broker_id=broker_id,
            name=NAMES.pod(broker_id),
            uid=self.uid(),
            ready=ready,
            terminating=False,
            template_hash=template,
            trouble=trouble,
            node=f"node-{broker_id}",
        )

    def claim(self, broker_id: int, size: int) -> ClaimState:
        return ClaimState(
            broker_id,
            NAMES.claim(broker_id),
            self.uid(),
            size,
            size,
            self.expandable,
            volume=f"volume-{broker_id}",
        )


def _copied(value: _T) -> _T:
    """As `copy.deepcopy`, six times faster."""
    copied: _T = pickle.loads(pickle.dumps(value))
    return copied


def where_of(partition: PartitionState) -> TopicPartition:
    return TopicPartition(partition.topic, partition.partition)


def _ids(brokers: tuple[int, ...]) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(each) for each in brokers)


def advance(world: World, wish: DesiredCluster) -> Plan:
    """One pass of the operator, and a little time."""
    from penstock_operator.plan import plan_cluster  # noqa: PLC0415 - after the module it tests

    if world.requests.get(FORGET_BROKER) == "":
        wish = replace(wish, forget_broker=None)
    plan = plan_cluster(wish, world.observed())
    for action in plan.actions:
        world.carry_out(action)
    world.go_on()
    return plan


def copying(broker: int, *, left: int, rate: int) -> CopyDescription:
    """What a leader says of one copy."""
    return CopyDescription(broker_id=broker, bytes_left=left, bytes_per_second=rate, limited_by="")


def settled(wish: DesiredCluster, seed: int = 0, partitions: int = 6) -> World:
    """A world in which everything is as `wish` says, with partitions on all brokers."""
    from penstock_operator.plan import plan_cluster  # noqa: PLC0415 - after the module it tests

    world = World(random.Random(seed))
    idle = 0
    for _ in range(50):
        if idle < _IDLE_PASSES:  # then only time passes, and to plan is what takes long
            actions = plan_cluster(wish, world.observed()).actions
            idle = idle + 1 if world.is_still and not actions else 0
            for action in actions:
                world.carry_out(action)
        world.go_on()
    brokers = wish.spec.brokers
    factor = min(3, brokers)
    for index in range(partitions):
        replicas = tuple((index + i) % brokers for i in range(factor))
        world.partitions.append(
            PartitionState("t", index, replicas[0], replicas, replicas, min(2, factor))
        )
    assert all(p.template_hash == template_hash(wish) for p in world.pods.values())
    return world
