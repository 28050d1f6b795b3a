"""A broker's session with the controller: registers, beats, applies images, asks for ISRs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.core.control import contract as cc
from penstock.core.control.views import Image
from penstock.core.features import BROKER_FEATURES
from penstock.core.replication.contract_leader import IsrProposal
from penstock.core.types import ControllerEpoch, ReplicaKey, TopicId
from penstock.errors import ClusterError, ErrorCode
from penstock_broker.controller.wire import image_to_wire
from penstock_sim.network import End, Stream

if TYPE_CHECKING:
    from penstock_sim.broker import SimBroker
    from penstock_sim.controller import SimController

HEARTBEAT_MS: Final = 60
SESSION_TIMEOUT_MS: Final = 260


class Session:
    """Survives restarts of the process as far as a broker's data directory would."""

    def __init__(self, broker: SimBroker) -> None:
        self.broker = broker
        self.stream: Stream | None = None
        self.number = 0
        self.controller_epoch = ControllerEpoch(0)
        self.version = 0
        self._epoch = ControllerEpoch(0)
        """Of the controller of this session; `controller_epoch` is the newest ever seen."""
        self._seen_version = 0
        self.topics: set[TopicId] = set()
        self.deleted: set[TopicId] = set()
        """What this run of the process has been told of: which topics are, and were."""
        self._controller: SimController | None = None
        self._heard_ms = 0
        self._generation = 0

    def start(self) -> None:
        """With the process."""
        self._generation += 1
        self.stream = None
        self.version = 0
        self.topics, self.deleted = set(), set()
        self._connect_soon()
        self._beat(self._generation)

    def _connect_soon(self) -> None:
        scheduler = self.broker.world.scheduler
        scheduler.after(scheduler.between(2, 25), self._connect, self._generation)

    def _connect(self, generation: int) -> None:
        broker = self.broker
        if not broker.up or generation != self._generation or self.stream is not None:
            return
        active = [controller for controller in broker.world.controllers.values() if controller.up]
        if not active:
            self._connect_soon()
            return
        controller = broker.world.scheduler.random.choice(active)
        ends: dict[int, End] = {int(broker.id): broker, controller.id: controller}
        stream = broker.world.net.connect(broker.id, controller.id, ends)
        if stream is None:
            self._connect_soon()
            return
        self.stream, self._controller, self.number = stream, controller, 0
        self._heard_ms = broker.world.scheduler.now_ms
        stream.send(
            broker.id,
            cc.BrokerRegistered(
                stream_id=stream.number,
                cluster_id=broker.world.cluster_id,
                broker_id=broker.id,
                incarnation=broker.run,
                host="simulated",
                port=9000 + broker.id,
                rack="",
                directory_id=f"directory-{broker.id}",
                data_intact=broker.intact,
                seen_controller_epoch=self.controller_epoch,
                seen_metadata_version=self._seen_version,
                features=BROKER_FEATURES,
                replication_port=broker.replication_port,
            ),
        )

    def broken(self) -> None:
        """The stream is gone; the broker keeps its roles (guarantees §4.1)."""
        self.stream = None
        self.number = 0
        self.version = 0
        self.broker.forget_images()
        self._connect_soon()

    def _beat(self, generation: int) -> None:
        broker = self.broker
        if not broker.up or generation != self._generation:
            return
        scheduler = broker.world.scheduler
        if self.stream is not None:
            if scheduler.now_ms - self._heard_ms > SESSION_TIMEOUT_MS:
                self.stream.break_off(silent_for=broker.id)
                self.broken()
            elif self.number:
                beat = cc.HeartbeatReceived(self.stream.number, self.version)
                self.stream.send(broker.id, beat)
        scheduler.after(HEARTBEAT_MS, self._beat, generation)

    def receive(self, message: Any) -> None:
        """What the controller says."""
        self._heard_ms = self.broker.world.scheduler.now_ms
        match message:
            case cc.SessionAccepted() if message.controller_epoch < self._promised:
                self._leave()
            case cc.SessionAccepted():
                self.broker.accepted()
                self._epoch = message.controller_epoch
                self.number = message.broker_session
                self.controller_epoch = max(self.controller_epoch, message.controller_epoch)
            case cc.SessionRefused():
                self._leave()
            case Image():
                self._apply(message)
            case _:
                pass

    def leave_older_than(self, epoch: ControllerEpoch) -> None:
        """Another controller was promised to be followed."""
        if self.number and self._epoch < epoch:
            self._leave()

    @property
    def _promised(self) -> ControllerEpoch:
        return self.broker.keeper.holder.promised

    def _leave(self) -> None:
        if self.stream is not None:
            self.stream.break_off(silent_for=self.broker.id)
            self.broken()

    def _apply(self, image: Image) -> None:
        if image.controller_epoch < self.controller_epoch:
            return
        self.controller_epoch = image.controller_epoch
        self._seen_version = max(self._seen_version, image.metadata_version)
        for topic in image.topics:
            for index, state in enumerate(topic.partitions):
                self.broker.world.checks.told(ReplicaKey(topic.topic_id, index), state)
        self.broker.take_image(image_to_wire(image), lambda: self._applied(image))

    def _applied(self, image: Image) -> None:
        self.version = image.metadata_version
        if image.full:
            self.topics.clear()
        self.deleted.update(image.deleted_topic_ids)
        self.topics.difference_update(image.deleted_topic_ids)
        self.topics.update(topic.topic_id for topic in image.topics)

    def propose(self, key: ReplicaKey, proposal: IsrProposal, answer: Callable[..., None]) -> None:
        """AlterIsr, on a call of its own; it may come late, or get no answer."""
        controller, world = self._controller, self.broker.world
        if controller is None or not self.number:
            return
        change = cc.IsrChange(
            topic_id=key.topic_id,
            partition=key.partition,
            leader_epoch=proposal.leader_epoch,
            version=proposal.version,
            isr=proposal.isr,
        )
        request = cc.AlterIsr(
            request_id=world.next_request(),
            cluster_id=world.cluster_id,
            broker_id=self.broker.id,
            broker_session=self.number,
            controller_epoch=self.controller_epoch,
            changes=(change,),
        )
        late_ms = world.scheduler.between(100, 900) if world.scheduler.chance(0.06) else 0
        world.scheduler.note(self.broker.name, "asks", change, f"late={late_ms:.0f}")
        world.scheduler.after(late_ms, self._ask, controller, request, answer)

    def allocate(self, answer: Callable[[cc.ProducerIds], None]) -> None:
        """A block of producer ids. `answer` hears nothing if it gets lost or is refused."""
        controller, world, generation = self._controller, self.broker.world, self._generation
        if controller is None or not self.number:
            return
        request = cc.AllocateProducerIds(
            world.next_request(), world.cluster_id, self.broker.id, self.number
        )
        me = int(self.broker.id)

        def arrive(outcome: Any) -> None:
            is_here = self.broker.up and generation == self._generation
            if is_here and isinstance(outcome, cc.ProducerIds):
                answer(outcome)

        def respond(outcome: Any) -> None:
            world.net.call(controller.id, me, arrive, outcome)

        world.net.call(me, controller.id, controller.request, request, respond)

    def _ask(
        self, controller: SimController, request: cc.AlterIsr, answer: Callable[..., None]
    ) -> None:
        net, me = self.broker.world.net, int(self.broker.id)

        def respond(outcome: Any) -> None:
            net.call(controller.id, me, self._answered, request, outcome, answer)

        net.call(me, controller.id, controller.request, request, respond)

    def _answered(self, request: cc.AlterIsr, outcome: Any, answer: Callable[..., None]) -> None:
        """As `ControllerSession.check_follows`: after the session's end an answer says nothing."""
        if request.broker_session != self.number:
            answer(None, ClusterError("too late", ErrorCode.CONTROLLER_UNAVAILABLE))
        elif isinstance(outcome, cc.IsrAltered):
            self._seen_version = max(self._seen_version, outcome.metadata_version)
            change, state = outcome.outcomes[0].change, outcome.outcomes[0].state
            if state is not None:
                key = ReplicaKey(change.topic_id, change.partition)
                self.broker.world.checks.told(key, state)
            answer(state, outcome.outcomes[0].error)
        else:
            answer(None, outcome)
