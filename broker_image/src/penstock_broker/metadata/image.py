"""The cluster's metadata in this broker: the controller's images, applied in order.

    full image ─▶ replaces all      change ─▶ upserts topics, removes deleted ones

Every broker answers Metadata from this and finds the leaders it follows. Images of an older
controller epoch are refused: a deposed controller must not revert the cluster (I21). Within an
epoch, the metadata version never decreases.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.core.authorization import Rule, Rulebook
from penstock.core.topic import TopicConfig
from penstock.core.types import BrokerId, LeaderEpoch, PartitionState, ReplicaKey, TopicId
from penstock.errors import (
    ClusterError,
    CurrentLeader,
    ErrorCode,
    MisuseError,
    PenstockError,
)
from penstock.proto.v1 import access_pb2, broker_pb2, controller_pb2
from penstock.rpc.access import rules_from_wire
from penstock.rpc.peers import PeerAddress, peer_address
from penstock.rpc.quotas import quotas_from_wire
from penstock_broker.observability import EventLog
from penstock_broker.serving.access import Access
from penstock_broker.serving.callers import Role, caller
from penstock_broker.serving.listener import address_for_caller

_events = EventLog("image")
_DELETED_MAX: Final = 10_000
_NO_IMAGE: Final = "this broker has not heard from a controller since it started; try again"


@dataclass(frozen=True, slots=True)
class LeaderAddress:
    """Where a broker's followers connect. `stream` None: only over gRPC, it is an older release, or
    one with TLS beside plaintext, whose port for streams has none."""

    grpc: PeerAddress
    stream: str | None

    @property
    def used(self) -> str:
        """The one that is used."""
        return self.stream or self.grpc.address


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic of the image. `wire` is the message it came in, passed on to clients."""

    name: str
    topic_id: TopicId
    config: TopicConfig
    partitions: tuple[PartitionState, ...]
    wire: broker_pb2.TopicInfo


@dataclass(slots=True)
class ClusterView:
    """The applied images; mutable, owned by the session that applies them."""

    cluster_id: str = ""
    controller_epoch: int = 0
    metadata_version: int = 0
    complete: bool = False
    brokers: dict[BrokerId, broker_pb2.BrokerInfo] = field(default_factory=dict)
    topics: dict[TopicId, Topic] = field(default_factory=dict)
    names: dict[str, TopicId] = field(default_factory=dict)
    deleted: dict[TopicId, None] = field(default_factory=dict)
    """The newest topics known to be deleted, oldest first, `_DELETED_MAX` at most."""
    hibernating: bool = False
    """The cluster goes to sleep: no new work is taken (`refusal`)."""
    rules: Rulebook = field(default_factory=Rulebook)
    """Who may do what. The images bring rules; options of the process may give roles before."""
    access: Access = field(init=False)
    """Asks `rules`."""
    _applied: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.access = Access(self.rules, self.unknown_topic)

    async def next_image(self) -> None:
        """Waits until another image is applied; the caller bounds the wait."""
        await self._applied.wait()

    def announce(self) -> None:
        """Wakes all waiters: an image took effect."""
        self._applied.set()
        self._applied = asyncio.Event()

    def apply(self, image: controller_pb2.ClusterImage) -> list[Topic]:
        """Applies an image and returns the topics that are new or changed.

        Raises ClusterError(STALE_CONTROLLER_EPOCH) after an image of a newer controller.
        """
        self.check_epoch(image.controller_epoch)
        if image.full:
            self.topics.clear()
            self.names.clear()
            self.complete = True
        self.controller_epoch = image.controller_epoch
        self.metadata_version = image.metadata_version
        self.hibernating = image.hibernating
        self.brokers = {BrokerId(info.broker_id): info for info in image.brokers}
        for topic_id in image.deleted_topic_ids:
            self._forget(TopicId(topic_id))
        changed = [topic_from_wire(info) for info in image.topics]
        for topic in changed:
            self.topics[topic.topic_id] = topic
            self.names[topic.name] = topic.topic_id
        self._apply_access(image)
        if image.HasField("quotas"):
            self.access.quotas.put(quotas_from_wire(image.quotas.rules))
        return changed

    def _apply_access(self, image: controller_pb2.ClusterImage) -> None:
        """After the topics: a rule that brokers do not understand is left out, and allows nothing.

        What is left out was written by a newer controller.
        """
        if image.HasField("access"):
            groups = {
                one.resource.group: understood(one.rules, f"group {one.resource.group}")
                for one in image.access.groups
            }
            self.rules.put_cluster(understood(image.access.cluster, "the cluster"), groups)
        rules = {
            one.resource.topic: understood(one.rules, f"topic {one.resource.topic}")
            for one in image.topic_access
        }
        for info in image.topics:
            self.rules.put_topic(info.topic, rules.get(info.topic, ()))
        if image.full or image.deleted_topic_ids:
            self.rules.keep_topics(self.names)

    def refusal(self) -> ClusterError | None:
        """Why no new work is taken now: records, producers, members of groups. None: it is.

        All else goes on while the cluster goes to sleep, so that it comes to rest: readers read to
        the end, members commit what they have read, transactions end.
        """
        if not self.hibernating:
            return None
        return ClusterError(
            "the cluster hibernates: it takes no new records, producers or group members; wait "
            "until it is woken, or wake it",
            ErrorCode.HIBERNATING,
        )

    def check_awake(self) -> None:
        """Raises ClusterError(HIBERNATING), see `refusal`."""
        refusal = self.refusal()
        if refusal is not None:
            raise refusal

    def check_epoch(self, controller_epoch: int) -> None:
        """Raises ClusterError(STALE_CONTROLLER_EPOCH) for an epoch older than the newest seen."""
        if controller_epoch < self.controller_epoch:
            raise ClusterError(
                f"controller epoch {controller_epoch} is older than {self.controller_epoch}, "
                "which this broker has seen: a deposed controller is still running",
                ErrorCode.STALE_CONTROLLER_EPOCH,
            )

    def _forget(self, topic_id: TopicId) -> None:
        self.deleted[topic_id] = None
        while len(self.deleted) > _DELETED_MAX:
            del self.deleted[next(iter(self.deleted))]
        topic = self.topics.pop(topic_id, None)
        if topic is not None and self.names.get(topic.name) == topic_id:
            del self.names[topic.name]

    def topic(self, name: str, topic_id: str = "") -> Topic:
        """Finds a topic by name; a given `topic_id` must match.

        Raises ClusterError: LEADER_NOT_AVAILABLE before the first image; UNKNOWN_TOPIC, also for an
        id of which this broker has not heard yet; TOPIC_ID_MISMATCH for one that was deleted.
        """
        if not self.complete:
            raise ClusterError(_NO_IMAGE, ErrorCode.LEADER_NOT_AVAILABLE)
        known = self.names.get(name)
        if known is None:
            raise self.unknown_topic(name)
        if topic_id and topic_id != known:
            if topic_id not in self.deleted:
                raise self.unknown_topic(name, topic_id)
            raise ClusterError(
                f"topic {name!r} has id {known}, the request names {topic_id}: the topic was "
                "deleted and created again",
                ErrorCode.TOPIC_ID_MISMATCH,
            )
        return self.topics[known]

    def unknown_topic(self, name: str, topic_id: str = "") -> ClusterError:
        """The error for a topic that does not exist, and for one that the caller may not see.

        Nobody may tell them apart.
        """
        who = caller()
        hint = ""
        if who.role is Role.USER:
            hint = f"; if it is there, {who.principal} may not see it: ask an administrator"
        named = f"{name!r} with id {topic_id}" if topic_id else repr(name)
        return ClusterError(
            f"there is no topic {named} in metadata version {self.metadata_version}; "
            f"create it, or retry if it was created a moment ago{hint}",
            ErrorCode.UNKNOWN_TOPIC,
        )

    def partition(self, name: str, topic_id: str, partition: int) -> tuple[Topic, PartitionState]:
        """Finds a partition; raises as `topic` does, or ClusterError(UNKNOWN_PARTITION)."""
        topic = self.topic(name, topic_id)
        if partition >= len(topic.partitions):
            raise ClusterError(
                f"topic {name!r} has partitions 0 to {len(topic.partitions) - 1}, not {partition}",
                ErrorCode.UNKNOWN_PARTITION,
            )
        return topic, topic.partitions[partition]

    def state(self, key: ReplicaKey) -> PartitionState | None:
        """The controller's state of a partition; None if it is not in the image."""
        topic = self.topics.get(key.topic_id)
        if topic is None or key.partition >= len(topic.partitions):
            return None
        return topic.partitions[key.partition]

    def leader(self, key: ReplicaKey) -> BrokerId | None:
        """A partition's leader; None: it has none, or the leader is not in the image."""
        state = self.state(key)
        return state.leader if state is not None and state.leader in self.brokers else None

    def current_leader(self, state: PartitionState) -> CurrentLeader:
        """The leader's address for clients; host empty if the image does not name it."""
        info = self.brokers.get(state.leader)
        if info is None:
            return CurrentLeader(state.leader, state.leader_epoch)
        host, port = address_for_caller(info)
        return CurrentLeader(state.leader, state.leader_epoch, host, port)

    def leader_address(self, broker_id: BrokerId, *, tls: bool) -> LeaderAddress | None:
        """Where a follower with or without TLS follows a broker that is alive, else None."""
        info = self.brokers.get(broker_id)
        if info is None or not info.alive:
            return None
        port = 0 if tls and info.secure_internal_port else info.replication_port
        return LeaderAddress(peer_address(info, tls=tls), f"{info.host}:{port}" if port else None)


def topic_from_wire(info: broker_pb2.TopicInfo) -> Topic:
    """Reads one topic of an image. Partitions arrive in any order, all of them."""
    partitions = sorted(info.partitions, key=lambda partition: partition.partition)
    return Topic(
        name=info.topic,
        topic_id=TopicId(info.topic_id),
        config=parse_config(info.configs),
        partitions=tuple(partition_from_wire(partition) for partition in partitions),
        wire=info,
    )


def understood(rules: Iterable[access_pb2.AccessRule], whose: str) -> tuple[Rule, ...]:
    """The rules that this release understands."""
    found: list[Rule] = []
    for rule in rules:
        try:
            found += rules_from_wire([rule])
        except PenstockError as error:
            _events.warning("rule of access not understood", whose=whose, reason=str(error))
    return tuple(found)


def partition_from_wire(info: broker_pb2.PartitionInfo) -> PartitionState:
    """Reads one partition's state."""
    return PartitionState(
        leader=BrokerId(info.leader),
        leader_epoch=LeaderEpoch(info.leader_epoch),
        isr=_brokers(info.isr),
        replicas=_brokers(info.replicas),
        version=info.version,
        adding=_brokers(info.adding),
        dropping=_brokers(info.dropping),
        damaged=_brokers(info.damaged),
    )


def _brokers(found: Iterable[int]) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(broker) for broker in found)


def parse_config(configs: Mapping[str, str]) -> TopicConfig:
    """Reads a topic's settings; the controller checked them when they were set.

    A newer controller may know keys that this broker does not: those are ignored.
    """
    config = TopicConfig()
    for name, value in configs.items():
        try:
            config = TopicConfig.parse({name: value}, config)
        except MisuseError as error:
            _events.warning("topic config not understood", reason=str(error))
    return config
