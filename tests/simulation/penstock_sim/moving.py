"""Somebody moves replicas while everything breaks: targets, cancels, cordons, drains.

    AlterReplicas ─▶ a controller ─▶ its answer, or none      wanted: what the end may look like
    MovingChecks: a move begins, is about to switch, has switched ─▶ a fault at this moment

One request at a time is under way for each partition. An answer decides what must come of it; with
none, or an unclear one, it may have been done or not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from penstock.core.control import move_contract as mc
from penstock.core.control.partition import PartitionDocument
from penstock.core.types import NO_LEADER, BrokerId, MoveReason, ReplicaKey
from penstock.errors import Applied, PenstockError
from penstock_sim.scheduler import RuleError

if TYPE_CHECKING:
    from penstock_sim.broker import SimBroker
    from penstock_sim.faults import Nemesis
    from penstock_sim.world import World

Members = tuple[BrokerId, ...]
_PATIENCE_MS: Final = 1_200
"""More than a controller's own: without an answer it has ended."""
_LONG_MS: Final = (300, 1_500)
"""How long a broker that left is cut off."""
_SOON_MS: Final = 25
"""A fault at a moment happens so soon after it."""


class Mover:
    """Who asks for moves, and what must come of them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._random = world.scheduler.generator("moves")
        self.asked: dict[ReplicaKey, set[Members]] = defaultdict(set)
        """All targets that anybody ever asked for."""
        self._cancels: set[ReplicaKey] = set()
        self._wanted: dict[ReplicaKey, set[Members]] = {}
        self._waiting: dict[ReplicaKey, tuple[int, Members]] = {}
        """The request under way: its number, and what the replicas are if it is accepted."""
        self._cordoned: set[BrokerId] = set()
        self._nemesis: Nemesis | None = None
        self._numbers = 0
        self._everyone = [BrokerId(broker) for broker in world.brokers]
        self._pace_ms = self._random.uniform(30, 150)

    def start(self, nemesis: Nemesis) -> None:
        """Once the partitions are there."""
        self._nemesis = nemesis
        for key in self.world.all_keys:
            self._wanted[key] = {self.world.checks.stored[key].state.replicas}
        self._next()

    def _next(self) -> None:
        self.world.scheduler.at_pace(self._random, self._pace_ms, self._act)

    def _act(self) -> None:
        if not self.world.chaotic:
            return
        [act] = self._random.choices(
            (self._move, self._cancel, self._cordon, self._drain, self._strike_somewhere),
            (8, 2, 2, 1, 2),
        )
        act()
        self._next()

    # ------------------------------------------------------------ what is asked for

    def _move(self) -> None:
        """Any target, also in place of another one."""
        key = self._some_key()
        if key is None:
            return
        document = self.world.checks.stored[key]
        size = len(document.state.replicas)
        if self._random.random() < 0.4:
            size = self._random.randint(self.world.layout.fewest, min(4, len(self._everyone)))
        free = [one for one in self._everyone if one not in self._cordoned]
        if self._random.random() < 0.1 or len(free) < size:
            free = self._everyone  # which may be refused
        if self._random.random() < 0.2 and len(document.state.replicas) > 1:
            free = list(document.state.replicas)  # nothing is copied for this one
            size = min(size, len(free))
        target = tuple(self._random.sample(free, size))
        self.ask({key: target}, change_factor=size != len(document.state.replicas))
        if self._random.random() < 0.2:
            self.world.scheduler.after(self._random.uniform(1, 300), self._cancel_one, key)

    def _cancel(self) -> None:
        moving = [key for key in self.world.all_keys if self.world.checks.stored[key].target]
        if moving:
            self._cancel_one(self._random.choice(moving))

    def _cancel_one(self, key: ReplicaKey) -> None:
        if self.world.chaotic and self.may_ask(key):
            self.ask({key: None})

    def _drain(self) -> None:
        """A broker is to have nothing; each of its replicas goes to any other."""
        leaving = self._random.choice(self._everyone)
        others = [broker for broker in self._everyone if broker != leaving]
        targets: dict[ReplicaKey, Members | None] = {}
        self._alter_cordon(leaving, placement=True)
        for key in self.world.all_keys:
            replicas = self.world.checks.stored[key].state.replicas
            free = [broker for broker in others if broker not in replicas]
            if leaving in replicas and free and key not in self._waiting:
                new = self._random.choice(free)
                targets[key] = tuple(new if one == leaving else one for one in replicas)
        if targets:
            self.ask(targets, why=MoveReason.DRAIN)

    def _cordon(self) -> None:
        """Sets one, or more often lifts one: of a drain, too."""
        if self._cordoned and self._random.random() < 0.7:
            self._alter_cordon(self._random.choice(sorted(self._cordoned)), placement=False)
        else:
            self._alter_cordon(self._random.choice(self._everyone), placement=True)

    def _alter_cordon(self, broker: BrokerId, *, placement: bool) -> None:
        """Who drains a broker has the word about its cordon."""
        (self._cordoned.add if placement else self._cordoned.discard)(broker)
        change = mc.BrokerChange(
            broker_id=broker, placement=placement, leadership=self._random.random() < 0.5
        )
        if self.world.drainer is not None and self.world.drainer.keeps_cordoned(broker):
            return
        self._send(
            mc.AlterBrokers(request_id=0, cluster_id=self.world.cluster_id, changes=(change,)),
            lambda _answer: None,
        )

    def _some_key(self) -> ReplicaKey | None:
        """Mostly one that is settled: if every target were replaced soon, no move would end."""
        free = [key for key in self.world.all_keys if key not in self._waiting]
        if self._random.random() < 0.75:
            free = [key for key in free if not self.world.checks.stored[key].target]
        return self._random.choice(free) if free else None

    # ------------------------------------------------------------ requests and answers

    def may_ask(self, key: ReplicaKey) -> bool:
        """No request for it is under way, and its topic is there."""
        return key not in self._waiting and key in self.world.all_keys

    def ask(
        self,
        targets: Mapping[ReplicaKey, Members | None],
        *,
        expected: Mapping[ReplicaKey, Members] | None = None,
        why: MoveReason = MoveReason.MANUAL,
        change_factor: bool = False,
    ) -> None:
        """Only for keys that `may_ask`. A target None: the partition's move is cancelled.

        `expected`: the replicas as the asker knows them; None: as they are.
        """
        stored = self.world.checks.stored
        if expected is None:
            expected = {key: stored[key].state.replicas for key in targets}
        changes = tuple(
            mc.ReplicaChange(
                topic=self.world.names[key.topic_id],
                topic_id=key.topic_id,
                partition=key.partition,
                expected=() if target is None else expected[key],
                target=target or (),
                cancel=target is None,
            )
            for key, target in targets.items()
        )
        request = mc.AlterReplicas(
            request_id=0,
            cluster_id=self.world.cluster_id,
            changes=changes,
            why=why,
            change_factor=change_factor,
        )
        self._numbers += 1
        number = self._numbers
        for key, target in targets.items():
            self._waiting[key] = (number, target or stored[key].state.replicas)
            if target is None:
                self._cancels.add(key)
            else:
                self.asked[key].add(target)
        keys = tuple(targets)
        self.world.scheduler.note("mover", "asks", number, targets)

        def answered(answer: object) -> None:
            self._answered(number, keys, answer)

        self._send(request, answered)
        self.world.scheduler.after(_PATIENCE_MS, answered, None)

    def _send(
        self, request: mc.AlterReplicas | mc.AlterBrokers, answered: Callable[[object], None]
    ) -> None:
        active = [one for one in self.world.controllers.values() if one.active]
        if active:
            asked = self._random.choice(active)

            def heard(answer: object) -> None:
                """While brokers stand in for the store, what a deposed controller has stored behind
                its successor's back may be replaced (ADR 29, Price)."""
                answered(None if self.world.journal and asked.is_deposed else answer)

            asked.request(request, heard)

    def _answered(self, number: int, keys: Sequence[ReplicaKey], answer: object) -> None:
        """Of the request with this number: results, an error, or None for no answer."""
        for position, key in enumerate(keys):
            known, members = self._waiting.get(key, (0, ()))
            if known != number:
                continue
            del self._waiting[key]
            self.world.scheduler.note("mover", "is answered", number, key, answer)
            error: object = answer
            if isinstance(answer, mc.ReplicasAltered):
                outcome = answer.outcomes[position]
                error = outcome.error
                if error is None:
                    self._accepted(key, outcome)
                    continue
            if not isinstance(error, PenstockError) or error.applied is not Applied.NO:
                self._wanted[key].add(members)

    def _accepted(self, key: ReplicaKey, outcome: mc.ReplicaOutcome) -> None:
        result = outcome.replicas if outcome.change.cancel else outcome.change.target
        if result not in {outcome.replicas, outcome.target}:
            raise RuleError(f"I31: {outcome} says that it is accepted")
        if self.world.is_deleted(key):
            return  # in the same write
        known = self.world.checks.stored[key]
        unwritten = not outcome.change.cancel and not known.target
        unwritten = unwritten and known.state.replicas == result
        if unwritten or self.world.pauses is not None:
            # An earlier request without an answer may follow: perhaps nothing was written, or both
            # wait for a controller that was paused.
            self._wanted[key].add(result)
        else:
            self._wanted[key] = {result}

    def may_cancel(self, key: ReplicaKey) -> bool:
        """Somebody has asked for it."""
        return key in self._cancels

    # ------------------------------------------------------------ faults at a moment

    def changed(self, key: ReplicaKey, before: PartitionDocument, after: PartitionDocument) -> None:
        """Of the stored partition: when a move begins or ends, something may break."""
        old, new = before.state, after.state
        if after.target not in {(), before.target, *self._allowed(key)}:
            raise RuleError(f"I31: nobody wants {key} on {after.target} any more: {after}")
        if (old.adding, old.replicas) != (new.adding, new.replicas):
            left = set(old.replicas) - set(new.replicas)
            joined = {*new.adding, *new.replicas} - set(old.replicas)
            self._maybe_strike(0.2, joined, left, new.leader)
            if left and self._random.random() < 0.15:
                broker = self._random.choice(sorted(left))
                self.cut_off(broker, self._random.uniform(*_LONG_MS))

    def proposed(self, key: ReplicaKey) -> None:
        """A leader asks for a switch."""
        document = self.world.checks.stored[key]
        state = document.state
        if not self.world.chaotic or not state.adding:
            return
        if self._random.random() < 0.15:
            self._outrun(state.leader, self.world.brokers[self._random.choice(state.adding)])
        else:
            left = set(state.replicas) - set(document.target)
            self._maybe_strike(0.2, set(state.adding), left, state.leader)

    def _outrun(self, leader: BrokerId, joining: SimBroker) -> None:
        """The proposal arrives late: who is to join is back before that, without its data."""
        assert self._nemesis is not None
        fault = self._random.choice((self._nemesis.take_power, self._nemesis.take_disk))
        fault(joining)
        if not joining.up:
            self._nemesis.restart_after(3, joining)
            one, two, held_ms = int(leader), int(joining.id), self._random.uniform(40, 140)
            self._block({(one, controller) for controller in self.world.controllers}, held_ms)
            self._block({(one, two), (two, one)}, 2 * held_ms)  # nor does it copy again before

    def _strike_somewhere(self) -> None:
        stored = self.world.checks.stored
        moving = [key for key in self.world.all_keys if stored[key].target]
        if moving:
            document = stored[self._random.choice(moving)]
            state = document.state
            left = set(state.replicas) - set(document.target)
            self._maybe_strike(1.0, set(state.adding), left, state.leader)

    def _maybe_strike(
        self,
        chance: float,
        joined: set[BrokerId],
        left: set[BrokerId],
        leader: BrokerId,
    ) -> None:
        if not self.world.chaotic or self._random.random() >= chance:
            return
        lead = {leader} - {NO_LEADER}
        roles = [sorted(role) for role in (joined, left, lead) if role]
        if roles:
            broker = self.world.brokers[self._random.choice(self._random.choice(roles))]
            delay_ms = self._random.uniform(0, _SOON_MS)
            self.world.scheduler.after(delay_ms, self._strike, broker)

    def _strike(self, broker: SimBroker) -> None:
        """Kills it, takes its power or its disk; or controllers and their store have trouble."""
        if not self.world.chaotic:
            return
        assert self._nemesis is not None
        nemesis = self._nemesis
        faults = (nemesis.kill, nemesis.take_power, nemesis.take_disk)
        others = (
            nemesis.kill_controller,
            nemesis.second_controller,
            nemesis.store_away,
            nemesis.slow_store,
        )
        if self._random.random() < 0.7:
            self._random.choice(faults)(broker)
        else:
            self._random.choice(others)()

    def cut_off(self, broker: BrokerId, for_ms: float) -> None:
        """It does not hear, say, that it has no replica any more."""
        one = int(broker)
        others = [node for node in (*self.world.brokers, *self.world.controllers) if node != one]
        pairs = {pair for node in others for pair in ((one, node), (node, one))}
        self._block(pairs, for_ms)

    def _block(self, ways: set[tuple[int, int]], for_ms: float) -> None:
        net, scheduler = self.world.net, self.world.scheduler
        net.blocked |= ways
        scheduler.note("net", "blocked", sorted(ways), for_ms)
        scheduler.after(for_ms, net.blocked.difference_update, ways)

    # ------------------------------------------------------------ the end

    def check_end(self) -> None:
        """The replicas are what the last answer said (I31)."""
        for key in self.world.all_keys:
            if key not in self._wanted:
                continue
            wanted, replicas = self._allowed(key), self.world.known(key).state.replicas
            if replicas not in wanted:
                raise RuleError(f"I31: {key} is on {replicas}, wanted was {wanted}")

    def _allowed(self, key: ReplicaKey) -> set[Members]:
        """What was accepted last, and what may have been done without a clear answer."""
        waiting = {self._waiting[key][1]} if key in self._waiting else set()
        return self._wanted.get(key, set()) | waiting
