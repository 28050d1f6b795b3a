"""The cluster is put to sleep and woken while everything breaks (ADR 75, I39).

    a wish: sleep, wake ─▶ a pass of the operator: facts, quiescence ─▶ plan_hibernation ─▶ its acts
        Hibernate ─▶ a controller     brokers, controllers to 0, or back ─▶ processes stop, start

What is decided is the operator's own (`plan_hibernation`, `Quiet`), from what the brokers say
(`Quiescence`, their metadata) in calls that take time and get lost. Kubernetes is a stand-in: the
two numbers of replicas, the annotation that is written with one of them, and pods that stop at
SIGTERM as `BrokerProcess` does. At each step something may happen: a kill, a power loss of one
broker or of all, machines that are switched off while the cluster sleeps, another wish.

Waits are as short as histories are. Choices come from a generator of its own, and only in histories
that want this: the others are what they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from penstock.client import BrokerQuiescence, MovesDescription
from penstock.client.cluster.wire import quiescence_from_wire
from penstock.core.control.documents import FORMAT_MOVES
from penstock.core.control.move_contract import AlterCluster
from penstock.core.manifest import ClusterSpec
from penstock_operator.hibernation_model import Record, Stage
from penstock_operator.model import (
    BrokerFacts,
    BrokerState,
    Object,
    Observed,
    PartitionState,
    Plan,
    PodState,
)
from penstock_operator.move_model import MoveFacts
from penstock_operator.names import ASLEEP, Names
from penstock_operator.objects import DesiredCluster, Installation
from penstock_operator.plan import hibernate as plan_module
from penstock_operator.plan.hibernate import Hibernation as HibernationPlan
from penstock_operator.plan.hibernate import plan_hibernation
from penstock_operator.resting import Quiet, rest_of
from penstock_operator.status import hibernation_row
from penstock_sim.hibernation_checks import HibernationChecks

if TYPE_CHECKING:
    from penstock_sim.broker import SimBroker
    from penstock_sim.faults import Nemesis
    from penstock_sim.world import World

_NODE: Final = 791
_NAMES: Final = Names("simulated", "default")
_REST_S: Final = 4.0
_RETURN_S: Final = 2.0
_PATIENCE_MS: Final = 150
"""So long a pass takes at most, if a broker does not answer it."""
_AWAKE_MS: Final = (20, 250)
_ASLEEP_MS: Final = ((5, 150), (300, 1_000))
"""How long it is wished to sleep: mostly long enough to come to rest, or taken back before."""
_TAKEN_BACK: Final = 0.25
_STOPPING_MS: Final = 15
_STARTING_MS: Final = 30
_STRIKE_WHILE_QUIESCING: Final = 0.35
_KILL_WHILE_STOPPING: Final = 0.3
_BLACKOUT: Final = 0.12
_SWITCHED_OFF: Final = 0.5
_ENDS_BEFORE_IT_SAYS_SO: Final = 0.05
"""So many passes do something, and end before the status has it."""
_FORGETFUL: Final = 0.05
"""So many passes are the first of another operator, which has no answer to compare."""


class Hibernation:
    """The operator and the Kubernetes of one history."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.checks = HibernationChecks(world)
        self._random = world.scheduler.generator("hibernation")
        self._pace_ms = self._random.uniform(30, 110)
        self._nemesis: Nemesis | None = None
        self._quiet = Quiet()
        self._status: dict[str, Any] = {}
        self._wish = False
        self._generation = 1
        self._passes = 0
        self._brokers = len(world.brokers)
        """Replicas of the StatefulSet."""
        self._asleep: int | None = None
        """Its annotation."""
        self._controllers = True

    def start(self, nemesis: Nemesis) -> None:
        """Once the partitions are there."""
        self._nemesis = nemesis
        self._after(_AWAKE_MS, self._wish_for, True)
        self._pass()

    @property
    def runs_brokers(self) -> bool:
        """Otherwise nobody starts one that is down: it has no pod."""
        return self._brokers > 0

    @property
    def runs_controllers(self) -> bool:
        """As `runs_brokers`."""
        return self._controllers

    def heal(self) -> None:
        """The cluster is to be awake."""
        if self._wish:
            self._wish_for(False)

    def unsettled(self) -> str:
        """What is not awake in a healed world; "": nothing."""
        views = [broker.shell.view for broker in self.world.brokers.values() if broker.shell]
        if self.checks.is_stored or any(view.hibernating for view in views):
            return "the cluster hibernates"
        return ""

    def _wish_for(self, hibernate: bool) -> None:
        if hibernate and not self.world.chaotic:
            return
        self._wish = hibernate
        self._generation += 1
        self.world.scheduler.note("operator", "wish", "sleep" if hibernate else "wake")
        if not hibernate:
            self._after(_AWAKE_MS, self._wish_for, True)
            return
        back = self._random.random() < _TAKEN_BACK
        self._after(_ASLEEP_MS[0 if back else 1], self._wake_again, self._generation)

    def _wake_again(self, generation: int) -> None:
        if generation == self._generation:
            self._wish_for(False)

    def _after(self, between: tuple[float, float], callback: Any, *args: object) -> None:
        self.world.scheduler.after(self._random.uniform(*between), callback, *args)

    # ------------------------------------------------------------ a pass: what is seen

    def _pass(self) -> None:
        """Asks, decides, and comes again."""
        self._passes += 1
        number, world = self._passes, self.world
        if self._random.random() < _FORGETFUL:
            self._quiet = Quiet()
        serving = [broker for broker in world.brokers.values() if _serves(broker)]
        if serving:
            broker = self._random.choice(serving)
            world.net.call(_NODE, int(broker.id), self._tell_facts, broker, number)
        world.scheduler.after(_PATIENCE_MS, self._decide, number, None, None)
        if not serving:
            self._decide(number, None, None)

    def _tell_facts(self, broker: SimBroker, number: int) -> None:
        if broker.shell is not None and _serves(broker):
            facts = _facts(broker)
            self.world.net.call(int(broker.id), _NODE, self._hear_facts, number, facts)

    def _hear_facts(self, number: int, facts: BrokerFacts) -> None:
        if number != self._passes:
            return
        if not (self._wish and facts.hibernating):
            self._quiet.forget()
            self._decide(number, facts, ())
            return
        live = [one.broker_id for one in facts.brokers.values() if one.alive]
        self._random.shuffle(live)
        self.checks.asking()
        self._ask_next(number, facts, live, ())

    def _ask_next(
        self, number: int, facts: BrokerFacts, left: list[int], told: tuple[BrokerQuiescence, ...]
    ) -> None:
        """One after the other, as the client does."""
        if number != self._passes:
            return
        if not left:
            self._decide(number, facts, told)
            return
        broker, others = self.world.brokers[left[0] + 1], left[1:]

        def heard(answer: BrokerQuiescence) -> None:
            self.world.scheduler.note("operator", "is told", answer)
            self._ask_next(number, facts, others, (*told, answer))

        self.world.net.call(_NODE, int(broker.id), self._tell_quiescence, broker, heard)

    def _tell_quiescence(self, broker: SimBroker, heard: Any) -> None:
        shell = broker.shell
        if shell is None:
            return

        async def answer() -> None:
            found = await shell.quiescence.describe()
            told = replace(quiescence_from_wire(found), broker_id=broker.id - 1)
            self.world.net.call(int(broker.id), _NODE, heard, told)

        shell.start(answer)

    # ------------------------------------------------------------ what is decided, and done

    def _decide(
        self, number: int, facts: BrokerFacts | None, told: tuple[BrokerQuiescence, ...] | None
    ) -> None:
        """`told` None: not everybody has answered."""
        if number != self._passes:
            return
        self._passes += 1  # what is said later is said to nobody
        proven = False
        if told is None:
            self._quiet.forget()
        elif told and facts is not None:
            proven = self._quiet.proven(told, facts.brokers)
        record, now = Record.of(self._status), self._now
        rest = rest_of(record, now, proven=proven, told=told or (), problem="no answer")
        plan = plan_hibernation(self._desired, self._observed(facts, rest), may_change=True)
        if plan.record is not None and plan.record.stage is not record.stage:
            self.world.scheduler.note("operator", plan.record.stage.name, plan.wait)
            self._strike(plan.record.stage)
        self._act(plan)
        if self._random.random() < _ENDS_BEFORE_IT_SAYS_SO:
            self._quiet = Quiet()
        else:
            self._status.update(hibernation_row(Plan(hibernation=plan.record), self._status, now))
        self._after((0.2 * self._pace_ms, 1.8 * self._pace_ms), self._pass)

    @property
    def _now(self) -> str:
        return datetime.fromtimestamp(self.world.scheduler.wall_ms / 1000, UTC).isoformat()

    @property
    def _desired(self) -> DesiredCluster:
        return DesiredCluster(
            names=_NAMES,
            uid="simulated",
            generation=self._generation,
            spec=ClusterSpec(brokers=len(self.world.brokers), hibernate=self._wish),
            installation=Installation("penstock-broker:1"),
            image="penstock-broker:1",
        )

    def _observed(self, facts: BrokerFacts | None, rest: Any) -> Observed:
        annotations = {} if self._asleep is None else {ASLEEP: str(self._asleep)}
        broker_set = {
            "spec": {"replicas": self._brokers},
            "metadata": {"annotations": annotations},
        }
        running = sum(one.up for one in self.world.controllers.values())
        deployment = {
            "spec": {"replicas": 2 if self._controllers else 0},
            "status": {"replicas": running},
        }
        objects: dict[tuple[str, str], Object] = {
            ("StatefulSet", _NAMES.broker): broker_set,
            ("Deployment", _NAMES.controller): deployment,
        }
        moving = MovesDescription(
            moves=(), brokers=(), format=FORMAT_MOVES, newest_format=FORMAT_MOVES, paused=False
        )
        return Observed(
            objects=objects,
            pods={pod.broker_id: pod for pod in self._pods()},
            claims={},
            brokers=facts,
            brokers_problem="" if facts is not None else "no broker answers",
            moves=None if facts is None else MoveFacts(moving),
            recorded_cluster_id=self.world.cluster_id,
            rest=rest,
        )

    def _pods(self) -> Iterator[PodState]:
        """While the set has none, one is there until its process has ended."""
        for broker in self.world.brokers.values():
            if self.runs_brokers or broker.up:
                yield PodState(
                    broker_id=broker.id - 1,
                    name=_NAMES.pod(broker.id - 1),
                    uid=broker.run,
                    ready=_serves(broker),
                    terminating=not self.runs_brokers,
                    template_hash="",
                )

    def _act(self, plan: HibernationPlan) -> None:
        for action in plan.actions:
            self._ask_controller(hibernating=action.hibernating)
        brokers = len(self.world.brokers) if plan.brokers is None else plan.brokers
        if self._brokers and not brokers:
            self.checks.at_rest()
        before, self._brokers, self._asleep = self._brokers, brokers, plan.asleep
        if before and not brokers:
            self._stop_brokers()
        elif brokers and not before:
            for broker in self.world.brokers.values():
                self._start_soon(broker)
        if plan.controllers != self._controllers:
            self._controllers = plan.controllers
            (self._start_controllers if plan.controllers else self._stop_controllers)()

    def _ask_controller(self, *, hibernating: bool) -> None:
        active = [one for one in self.world.controllers.values() if one.active]
        if active:
            request = AlterCluster(
                request_id=0, cluster_id=self.world.cluster_id, hibernating=hibernating
            )
            self.world.scheduler.note("operator", "asks for", "sleep" if hibernating else "wake")
            self.checks.asked(hibernating=hibernating)
            controller = self._random.choice(active)
            if hibernating:
                controller.request(request)
            else:
                controller.request(request, self.checks.waking(controller))

    # ------------------------------------------------------------ pods

    def _stop_brokers(self) -> None:
        for broker in self.world.brokers.values():
            self._after((0, _STOPPING_MS), self._stop, broker)

    def _stop(self, broker: SimBroker) -> None:
        if broker.up:
            broker.stop(partial(self._stopped, broker))

    def _stopped(self, broker: SimBroker) -> None:
        self._start_soon(broker)

    def _start_soon(self, broker: SimBroker) -> None:
        self._after((0, _STARTING_MS), self._start, broker)

    def _start(self, broker: SimBroker) -> None:
        if self.runs_brokers and not broker.up:
            broker.start()

    def _stop_controllers(self) -> None:
        for controller in self.world.controllers.values():
            if controller.up:
                controller.kill()
        self.world.meta.lose_lease()
        if self._random.random() < _SWITCHED_OFF:
            for broker in self.world.brokers.values():
                broker.switch_off()

    def _start_controllers(self) -> None:
        wanted = list(self.world.controllers.values())
        for controller in self._random.sample(wanted, self._random.choice((1, 1, 2))):
            self._after((0, _STARTING_MS), self._start_controller, controller)

    def _start_controller(self, controller: Any) -> None:
        if self._controllers and not controller.up:
            controller.start()

    # ------------------------------------------------------------ faults at a moment

    def _strike(self, stage: Stage) -> None:
        nemesis, chance = self._nemesis, self._random
        if nemesis is None or not self.world.chaotic:
            return
        broker = chance.choice(list(self.world.brokers.values()))
        if stage is Stage.HIBERNATING and chance.random() < _STRIKE_WHILE_QUIESCING:
            fault = chance.choice((nemesis.kill, nemesis.take_power))
            self._after((0, 2 * self._pace_ms), fault, broker)
        elif stage is Stage.STOPPING:
            if chance.random() < _KILL_WHILE_STOPPING:
                self._after((0, 2 * _STOPPING_MS), nemesis.kill, broker)
            if chance.random() < _BLACKOUT:
                self._after((0, 2 * _STOPPING_MS), self._blackout)

    def _blackout(self) -> None:
        """All that run lose power, whatever they had still to fsync."""
        self.world.scheduler.note("world", "blackout")
        for broker in self.world.brokers.values():
            if broker.up:
                broker.kill(power=True)


def _serves(broker: SimBroker) -> bool:
    shell = broker.shell
    return shell is not None and shell.view.complete and not shell.loop.paused


def _facts(broker: SimBroker) -> BrokerFacts:
    """As DescribeCluster and DescribeTopics of one broker say. Pods are counted from 0."""
    shell = broker.shell
    assert shell is not None
    view = shell.view
    partitions = tuple(
        PartitionState(
            topic.name,
            index,
            state.leader,
            tuple(state.replicas),
            tuple(state.isr),
            min_isr=1,
        )
        for topic in view.topics.values()
        for index, state in enumerate(topic.partitions)
    )
    brokers = {
        number - 1: BrokerState(number - 1, info.host, info.alive)
        for number, info in view.brokers.items()
    }
    connected = shell.membership.session.connected
    return BrokerFacts(view.cluster_id, connected, brokers, partitions, {}, view.hibernating)


@contextmanager
def waits_of_a_history() -> Iterator[None]:
    """The operator's patience, in seconds of a node."""
    with mock.patch.multiple(plan_module, REST_S=_REST_S, RETURN_S=_RETURN_S):
        yield
