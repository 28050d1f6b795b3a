"""Brokers are drained while everything breaks, by what the operator and the planner decide.

    a pass: `read_moves` ─▶ plan_drain (core/balance) ─▶ cordons, moves ─▶ a controller, the Mover
            `Proofs` ◀── empty, twice                    plan_cancel ◀── the drain is taken back

What is asked, decided and proven is the product's. One broker is drained at a time. A drain ends
when the broker is proven empty: then it stays so until the history ends, or is used again. It is
taken back at any time, or when the planner has found no room for too long. A plan may be out of
date when it is submitted, and each of its moves is accepted or refused by itself; the next pass
plans what is left.

The proof takes 2 s of a node in place of 5, as histories are short. Choices come from a generator
of its own, and only in histories that want drains: the others are what they were.
"""

from __future__ import annotations

from asyncio import sleep
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from unittest import mock

from penstock.client import ReplicaMove
from penstock.core.types import NO_LEADER, BrokerId, ReplicaKey, TopicId
from penstock.errors import PenstockError
from penstock_operator import proofs as proofs_module
from penstock_operator.model import Action, CordonBrokers, MoveReplicas, Severity
from penstock_operator.move_model import MoveFacts
from penstock_operator.plan.drain import plan_cancel, plan_drain
from penstock_operator.proofs import Proofs, read_moves
from penstock_sim.admin_calls import AdminNode, PlacementAdmin
from penstock_sim.drain_checks import DrainChecks

if TYPE_CHECKING:
    from penstock_sim.world import World

_NODE: Final = 793
_PROOF_S: Final = 2.0
_PACE_S: Final = (0.1, 0.6)
_LATE_S: Final = (0.0, 0.0, 0.0, 0.3, 1.5)
_LATE_MS: Final = 500
"""After healing, all that was asked of a paused controller has been done."""
"""Between a plan and its submission."""
_BEGINS: Final = 0.4
_TAKEN_BACK: Final = 0.3
_PATIENCE_S: Final = (0.5, 8.0)
"""After so long those are taken back."""
_BLOCKED_MAX: Final = 6
"""So many passes in a row find no room; then a drain is taken back."""
_QUEUED: Final = 0.5
_CUT_OFF_MS: Final = (400, 1_500)
_STAYS_EMPTY: Final = 0.5
_FORGETFUL: Final = 0.03
"""So many passes are the first of another operator, which remembers no proof."""
_RACKS: Final = (1, 1, 2, 3)


class Drainer:
    """The operator of one history, as far as it drains."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.checks = DrainChecks(world)
        self._random = world.scheduler.generator("drains")
        self._node = AdminNode(world, _NODE, "drainer", self._random)
        self._admin = PlacementAdmin(self._node, self._random)
        self._pace_s = self._random.uniform(*_PACE_S)
        self._proofs = Proofs(self._node.loop.time)
        racks = self._random.choice(_RACKS)
        self.racks = {
            broker: f"rack-{self._random.randrange(racks)}" if racks > 1 else ""
            for broker in world.brokers
        }
        self._drained: BrokerId | None = None
        """Who is to have nothing."""
        self._former: BrokerId | None = None
        """Of whom something may be left to take back."""
        self._until_s = 0.0
        self._blocked = 0

    def start(self) -> None:
        """Once the partitions are there."""
        self._node.start(self._work())

    def keeps_cordoned(self, broker: BrokerId) -> bool:
        """Nobody else is to change its cordon."""
        return broker in {self._drained, self._former}

    def unsettled(self) -> str:
        """What has not ended in a healed world; "": nothing."""
        if self._drained is not None and self._drained != self.checks.empty:
            return f"broker {self._drained} is being drained"
        if self._former is not None:
            return f"the drain of broker {self._former} is being taken back"
        return ""

    # ------------------------------------------------------------ what is wished for

    async def _work(self) -> None:
        while True:
            await sleep(self._random.uniform(0.2, 1.8) * self._pace_s)
            if self._random.random() < _FORGETFUL:
                self._proofs = Proofs(self._node.loop.time)
            self._choose()
            try:
                await self._pass()
            except PenstockError as error:
                self.world.scheduler.note("drainer", "fails", error)

    def _choose(self) -> None:
        """To begin a drain, or to take it back."""
        now_s = self._node.loop.time()
        if self._drained is not None and self._drained != self.checks.empty:
            if now_s > self._until_s or self._blocked > _BLOCKED_MAX:
                self.checks.taken_back += 1
                self._use_again()
        elif self._may_begin and self._random.random() < _BEGINS:
            self.checks.begun += 1
            self._drained = self._some_broker()
            self._blocked = 0
            patience_s = float("inf")
            if self._random.random() < _TAKEN_BACK:
                patience_s = self._random.uniform(*_PATIENCE_S)
            self._until_s = now_s + patience_s
            self.world.scheduler.note("drainer", "drains", self._drained)

    def _some_broker(self) -> BrokerId:
        """Any; or an empty one, to which somebody has just moved what nobody leads for a while."""
        stored, mover = self.world.checks.stored, self.world.mover
        assert mover is not None
        idle = [
            key
            for key in self.world.all_keys
            if stored[key].state.leader == NO_LEADER
            and not stored[key].target
            and mover.may_ask(key)
        ]
        brokers = [BrokerId(broker) for broker in self.world.brokers]
        empty = [broker for broker in brokers if not self.checks.left_on(broker)]
        if not idle or not empty or self._random.random() >= _QUEUED:
            return self._random.choice(brokers)
        key, broker = self._random.choice(idle), self._random.choice(empty)
        replicas = stored[key].state.replicas
        for member in replicas:
            mover.cut_off(member, self._random.uniform(*_CUT_OFF_MS))
        self.world.scheduler.note("drainer", "queues", key, broker, replicas)
        mover.ask({key: (*replicas[:-1], broker)})
        return broker

    @property
    def _may_begin(self) -> bool:
        return self.world.chaotic and self._drained is None and self._former is None

    def _use_again(self) -> None:
        self.world.scheduler.note("drainer", "takes back", self._drained)
        self._drained, self._former = None, self._drained

    # ------------------------------------------------------------ a pass

    async def _pass(self) -> None:
        """Asks, decides, acts. Raises PenstockError."""
        if self._drained is not None:
            leaving = (self._drained,)
            moves = await read_moves(self._admin, leaving, self._proofs)
            if self._drained in moves.proven and self.checks.empty != self._drained:
                self._proven(self._drained)
                return
            actions, waits = plan_drain(moves, leaving, self._drained)
            blocked = any(wait.severity is Severity.BLOCKED for wait in waits)
            self._blocked = self._blocked + 1 if blocked else 0
            self.world.scheduler.note("drainer", "plans", actions, waits)
            await self._act(actions, moves, leaving)
        elif self._former is not None:
            moves = await read_moves(self._admin, (), self._proofs)
            await self._cancel(self._former, moves)

    def _proven(self, broker: BrokerId) -> None:
        self.world.scheduler.note("drainer", "has proven empty", broker)
        self.checks.proven(broker)
        if self.world.chaotic and self._random.random() >= _STAYS_EMPTY:
            self.checks.empty = None
            self._use_again()

    async def _cancel(self, broker: BrokerId, moves: MoveFacts) -> None:
        actions = plan_cancel(moves, max(self.world.brokers) + 1)
        self.world.scheduler.note("drainer", "cancels", actions)
        if any(isinstance(action, CordonBrokers) for action in actions):
            self.checks.lifting(broker, moves.moving)
        if actions or moves.moving.paused:
            await self._act(actions, moves, ())
        elif self._nothing_is_late:
            self.checks.back(broker, moves.moving)
            self._former = None

    @property
    def _nothing_is_late(self) -> bool:
        """A paused controller may cordon once more when it goes on; an operator looks for ever."""
        world = self.world
        if world.pauses is None:
            return True
        return not world.chaotic and world.scheduler.now_ms > world.healed_ms + _LATE_MS

    async def _act(
        self, actions: tuple[Action, ...], moves: MoveFacts, leaving: tuple[BrokerId, ...]
    ) -> None:
        await sleep(self._random.choice(_LATE_S))
        for action in actions:
            if isinstance(action, CordonBrokers):
                await self._admin.alter_brokers(action.changes)
            elif isinstance(action, MoveReplicas):
                if leaving:
                    assert moves.seen is not None
                    self.checks.planned(action.moves, moves.seen.facts, leaving)
                self._submit(action)

    def _submit(self, action: MoveReplicas) -> None:
        """All moves of partitions of which no other request is under way."""
        mover = self.world.mover
        assert mover is not None
        asked = {_key(move): move for move in action.moves if mover.may_ask(_key(move))}
        if asked:
            mover.ask(
                {key: _members(move.target) or None for key, move in asked.items()},
                expected={key: _members(move.expected) for key, move in asked.items()},
                why=action.reason,
            )


def _key(move: ReplicaMove) -> ReplicaKey:
    return ReplicaKey(TopicId(move.topic_id), move.where.partition)


def _members(brokers: tuple[int, ...]) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(one) for one in brokers)


@contextmanager
def proofs_of_a_history() -> Iterator[None]:
    """As short as histories are."""
    with mock.patch.object(proofs_module, "PROOF_S", _PROOF_S):
        yield
