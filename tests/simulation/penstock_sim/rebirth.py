"""A topic that is deleted and created again under its name, and that is given more partitions.

    created ─▶ clients ─▶ more partitions ─▶ deleted ─▶ created with another id ─▶ other clients

Each life of the name has a topic id of its own. Its clients know that id, and go on for a while
when it is gone; those of the next life use the same producer ids. Brokers may be down, cut off or
behind meanwhile: nothing of a former life may be in a later one (I21), and in the end nothing of it
is left on any broker (I30).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.core.control import contract as cc
from penstock.core.records import decode_batch
from penstock.core.types import Acks, ReplicaKey, Sync, TopicId
from penstock.errors import ErrorCode, PenstockError
from penstock_sim.changes import PATIENCE_MS
from penstock_sim.clients import Consumer, Outgoing, Plan, Producer
from penstock_sim.scheduler import RuleError
from penstock_sim.visitor import Visitor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.core.batch import Batch
    from penstock.core.control.documents import TopicDocument
    from penstock.core.replication.contract_leader import ProduceReply
    from penstock_broker.metadata.image import ClusterView
    from penstock_sim.world import World

NAME: Final = "again"
_IDS: Final = "00000000-0000-4000-8000-0000000001"
_FIRST_PRODUCER: Final = 900
_LOOK_MS: Final = 20
_PARTITIONS_MAX: Final = 4
_UNAWARE_MS: Final = 250
"""So long at most a client goes on with a topic that is gone."""


def is_reborn(key: ReplicaKey) -> bool:
    """It is a partition of the name, whenever."""
    return key.topic_id.startswith(_IDS)


@dataclass(slots=True, eq=False)
class Life:
    """One topic of the name. `partitions`: as stored; 0: it is not, or not any more."""

    number: int
    topic_id: TopicId
    epoch: int = 0
    partitions: int = 0
    served: int = 0
    """So many have clients: a journal may take back one that nobody was told of."""
    wanted: int = 0
    """So many partitions were requested, and nobody has answered; 0: nothing was."""
    is_certain: bool = False
    """Its creation was answered."""
    is_doomed: bool = False
    """Its deletion was requested."""
    is_gone: bool = False
    known_by: set[int] = field(default_factory=set)
    """Controller epochs."""
    clients: list[LivingProducer] = field(default_factory=list)

    @property
    def keys(self) -> list[ReplicaKey]:
        count = 0 if self.is_gone else self.partitions
        return [ReplicaKey(self.topic_id, index) for index in range(count)]


class LivingProducer(Producer):
    """Writes to one life's partition until it hears that it is gone, or finds out otherwise."""

    def __init__(self, world: World, number: int, key: ReplicaKey, plan: Plan, life: Life) -> None:
        super().__init__(world, number, key, plan)
        self.life = life
        self.name = f"p{number}.{life.number}"
        self.is_closed = False

    def close(self) -> None:
        """It sends nothing more: whatever waits is never answered."""
        if not self.is_closed:
            self.is_closed = True
            self._forget_queue()

    def _produce(self) -> None:
        if not self.is_closed:
            super()._produce()

    def _answered(self, outgoing: Outgoing, connection: int, reply: ProduceReply) -> None:
        code = None if reply.error is None else reply.error.code
        if code is ErrorCode.TOPIC_ID_MISMATCH and not self.life.is_gone:
            raise RuleError(f"I21: {self.name} hears that its topic is gone: {reply.error}")
        if code is not None and self.life.is_gone:
            self.close()
        elif not self.is_closed:
            super()._answered(outgoing, connection, reply)


@dataclass(slots=True)
class LivingConsumer(Consumer):
    """Reads one life's partition for as long as it is there."""

    life: Life | None = None

    def _poll(self) -> None:
        assert self.life is not None
        if not self.life.is_gone:
            super(LivingConsumer, self)._poll()  # the class is created again by `slots`


class Rebirth:
    """Of one history."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._random = world.scheduler.generator("rebirth")
        self._pace_ms = self._random.choice((60, 150, 400))
        self.lives: list[Life] = []
        self._waiting = 0
        """The number of the request under way; 0: none is."""
        self.grown = 0
        self.visitor: Visitor | None = None

    # ------------------------------------------------------------ what there is

    @property
    def keys(self) -> list[ReplicaKey]:
        """Partitions of the topic that is stored, if one is."""
        return self.lives[-1].keys if self.lives else []

    @property
    def count(self) -> int:
        """How many topics there were."""
        return sum(life.partitions > 0 for life in self.lives)

    def is_gone(self, topic_id: TopicId) -> bool:
        """It was deleted."""
        return any(life.is_gone for life in self.lives if life.topic_id == topic_id)

    def stored(self, topic: TopicDocument) -> None:
        """The store, or a journal that counts, has this topic of the name."""
        life = self.lives[-1]
        if topic.topic_id != life.topic_id:
            raise RuleError(f"I21: nobody has created {topic.name} as {topic.topic_id}")
        for former in self.lives[:-1]:
            if former.partitions and not former.is_gone:
                self.removed(former)  # both in one write
        life.partitions = len(topic.partitions)
        life.epoch = life.epoch or int(topic.controller_epoch)
        self.world.names[topic.topic_id] = NAME
        before, life.served = life.served, max(life.served, life.partitions)
        for index in range(before, life.partitions):
            delay_ms = self._random.uniform(0, 40)
            self.world.scheduler.after(delay_ms, self._start_clients, life, index)

    def removed(self, life: Life | None = None) -> None:
        """Its document is gone."""
        life = life or self.lives[-1]
        if life.is_gone or not life.partitions:
            return
        if life.is_certain and not life.is_doomed:
            raise RuleError(f"I22: nobody has deleted {NAME} {life.topic_id}")
        self.world.scheduler.note("checks", "deleted", NAME, life.topic_id)
        keys = life.keys
        life.is_gone = True
        self.world.checks.forget(keys)
        for client in life.clients:
            self.world.scheduler.after(self._random.uniform(0, _UNAWARE_MS), client.close)
        gone = set(keys)
        world = self.world
        world.producers = [one for one in world.producers if one.key not in gone]
        world.consumers = [one for one in world.consumers if one.key not in gone]

    def adopted(self, controller_epoch: int, topics: Iterable[TopicDocument]) -> None:
        """A controller decides on these: while brokers keep a journal, the store may be behind."""
        life = self.lives[-1] if self.lives else None
        if life is None or life.is_gone or not life.partitions:
            return
        if any(topic.topic_id == life.topic_id for topic in topics):
            life.known_by.add(controller_epoch)
        elif self.world.journal and life.is_doomed and controller_epoch >= max(life.known_by | {0}):
            self.removed(life)

    # ------------------------------------------------------------ clients

    def _start_clients(self, life: Life, index: int) -> None:
        if life.is_gone:
            return
        world, chance, key = self.world, self._random, ReplicaKey(life.topic_id, index)
        for number in range(chance.choice((1, 1, 2))):
            acks = chance.choice((Acks.ALL, Acks.ALL, Acks.ALL, Acks.LEADER))
            plan = Plan(
                idempotent=chance.random() < 0.8,
                acks=acks,
                sync=chance.choice((Sync.DISK, Sync.OS, Sync.OS)),
                retries=True,
                pause_ms=chance.choice((5, 12, 30)),
            )
            client = LivingProducer(world, _FIRST_PRODUCER + 10 * index + number, key, plan, life)
            life.clients.append(client)
            world.producers.append(client)
        consumer = LivingConsumer(world, f"r{life.number}.{index}", key, life=life)
        world.consumers.append(consumer)
        consumer.start()

    @staticmethod
    def find(view: ClusterView, key: ReplicaKey) -> ReplicaKey | PenstockError:
        """As a broker's services take a request that names the topic and its id."""
        try:
            topic, _ = view.partition(NAME, key.topic_id, key.partition)
        except PenstockError as error:
            return error
        return ReplicaKey(topic.topic_id, key.partition)

    def committed(self, key: ReplicaKey, batch: Batch) -> None:
        """Each batch is one of this life's clients'."""
        if batch.header.is_control or batch.header.is_transactional:
            return
        value = next(iter(decode_batch(batch).values())) or b""
        name = value.split(b":")[0]
        [life] = [one for one in self.lives if one.topic_id == key.topic_id]
        if not name.endswith(b".%d" % life.number):
            raise RuleError(f"I21: {value!r} is in {key}, which is life {life.number}")

    # ------------------------------------------------------------ the administrator

    def start(self) -> None:
        """Creates the topic for the first time."""
        if self.world.groups is not None:
            self.visitor = Visitor(self, NAME)
        self.lives.append(self._new_life())
        self._create()
        if self.visitor is not None:
            self.visitor.start()
        self.world.scheduler.at_pace(self._random, self._pace_ms, self._act)

    def _new_life(self) -> Life:
        number = len(self.lives) + 1
        return Life(number, TopicId(f"{_IDS}{number:02d}"))

    def _act(self) -> None:
        life, chance = self.lives[-1], self._random
        if not self._waiting:
            if life.is_gone:
                life = self._new_life()
                self.lives.append(life)
            if not life.is_certain:
                self._create()
            elif life.is_doomed or (self.world.chaotic and chance.random() < 0.5):
                self._delete(life)
            elif life.wanted or (self.world.chaotic and life.partitions < _PARTITIONS_MAX):
                self._grow(life)
        hurry = not life.is_certain or life.is_doomed or life.wanted
        self.world.scheduler.at_pace(chance, _LOOK_MS if hurry else self._pace_ms, self._act)

    def _create(self) -> None:
        life, layout = self.lives[-1], self.world.layout
        topic = cc.NewTopic(
            name=NAME,
            topic_id=life.topic_id,
            partitions=self._random.choice((1, 1, 2)),
            replication_factor=layout.factor,
            configs=layout.configs,
        )
        number = self.world.next_request()
        request = cc.CreateTopics(number, self.world.cluster_id, (topic,))

        def created(answer: object) -> None:
            if not isinstance(answer, cc.TopicsChanged):
                return
            error = answer.outcomes[0].error
            if error is None:
                life.is_certain = True
            elif error.code is not ErrorCode.TOPIC_ALREADY_EXISTS and not life.is_certain:
                self.world.checks.moving.not_created(life.keys)

        self._ask(request, number, created)

    def _delete(self, life: Life) -> None:
        life.is_doomed = True
        number = self.world.next_request()
        topics = ((NAME, life.topic_id),)
        request = cc.DeleteTopics(number, self.world.cluster_id, topics)
        self._ask(request, number, lambda _answer: None)

    def _grow(self, life: Life) -> None:
        """Once a controller has answered, the next ones know of it."""
        number = self.world.next_request()
        life.wanted = life.wanted or life.partitions + 1
        request = cc.CreatePartitions(
            request_id=number,
            cluster_id=self.world.cluster_id,
            topic=NAME,
            partitions=life.wanted,
        )

        def grown(answer: object) -> None:
            has_it = isinstance(answer, PenstockError) and not answer.retriable
            if has_it or isinstance(answer, cc.Done):
                self.grown += 1
                life.wanted = 0

        self._ask(request, number, grown)

    def _ask(self, request: Any, number: int, heard: Callable[[object], None]) -> None:
        active = [one for one in self.world.controllers.values() if one.active]
        if not active:
            return
        asked, self._waiting = self._random.choice(active), number
        self.world.scheduler.note("rebirth", "asks", asked.name, request)

        def answered(answer: object) -> None:
            if self._waiting != number:
                return
            self._waiting = 0
            self.world.scheduler.note("rebirth", "is answered", answer)
            if not (self.world.journal and asked.is_deposed):
                heard(answer)  # what it has stored may be replaced otherwise (ADR 29, Price)

        asked.request(request, answered)
        self.world.scheduler.after(PATIENCE_MS, answered, None)

    # ------------------------------------------------------------ the end

    def unsettled(self) -> str:
        """What is not as it must be once all is healed; "": all is."""
        life = self.lives[-1]
        if not life.is_certain or life.is_doomed or life.wanted or self._waiting:
            return f"topic {NAME} has yet to be created again: {life}"
        formers = {one.topic_id for one in self.lives[:-1]}
        for broker in self.world.brokers.values():
            left = [key for key in broker.disk.slots() if key.topic_id in formers]
            if left:
                return f"I30: {broker.name} still has {left}, whose topic was deleted"
            if broker.shell is not None and formers & broker.shell.view.topics.keys():
                return f"{broker.name} knows a topic that was deleted"
        return ""
