"""The groups of a history: their members, what disturbs them, and resets of their offsets.

set up with the topics ──▶ members join under chaos ──▶ heal: all run ──▶ each group is stable,
has read everything and committed it ──▶ `group_checks.check_end`
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.client.group.membership import Phase
from penstock.core.groups import contract as gc
from penstock.core.groups.catalog import NamedPartition
from penstock.core.groups.contract_views import GroupState
from penstock.core.types import ReplicaKey
from penstock.errors import PenstockError
from penstock_sim.coordinator import OFFSETS_KEY
from penstock_sim.members import MemberPlan, SimMember
from penstock_sim.scheduler import RATE

if TYPE_CHECKING:
    from penstock_sim.broker import SimBroker
    from penstock_sim.world import World

_ADMIN: Final = 999
_ADMIN_PAUSE_MS: Final = 120


class SimGroups:
    """The groups of a history; every third one has them."""

    def __init__(self, world: World, topic: str) -> None:
        self.world = world
        self.members: list[SimMember] = []
        self._random = world.scheduler.random
        self.ids = self._new_ids()
        self._resets = 0
        self._menu: list[tuple[int, Callable[[], None]]] = [
            (8, self._kill_member),
            (8, self._freeze_member),
            (4, self._lag),
            (6, self._leave),
            (6, self._cut_member),
            (4, self._stop_group),
            (5, self._kill_coordinator),
            (3, self._cut_coordinator),
        ]
        if world.scheduler.chance(0.6):
            self._menu = self._random.sample(self._menu, self._random.randrange(1, 5))
        self._pace_ms = world.scheduler.between(40, 250)
        for group_id in self.ids:
            self._plan_group(group_id, topic)

    def _new_ids(self) -> list[str]:
        return [f"g{number}" for number in range(self._random.choice((1, 1, 2)))]

    def sources(self, _group_id: str) -> list[ReplicaKey]:
        """The partitions that a group reads."""
        return self.world.keys

    def _plan_group(self, group_id: str, topic: str) -> None:
        chance, static = self._random, self._random.random() < 0.3
        for _ in range(chance.choice((2, 2, 3, 4))):
            number = len(self.members) + 1
            plan = MemberPlan(
                group_id,
                topic,
                f"seat-{number}" if static else "",
                automatic=chance.random() < 0.6,
                record_wise=chance.random() < 0.3,
                session_ms=chance.choice((2_000, 2_000, 3_200)),
                max_poll_ms=chance.choice((2_000, 3_000)),
                work_ms=chance.choice((1, 6, 20)),
                commit_every_ms=chance.choice((20, 60)),
            )
            self.members.append(self._new_member(number, plan))

    def _new_member(self, number: int, plan: MemberPlan) -> SimMember:
        return SimMember(self.world, number, plan)

    def start(self) -> None:
        """Members start one after another."""
        scheduler = self.world.scheduler
        for member in self.members:
            scheduler.after(scheduler.between(0, 150), self._start_member, member, member.life)
        self._strike_later()
        scheduler.after(scheduler.between(0, 2 * _ADMIN_PAUSE_MS), self._administer)

    def _start_member(self, member: SimMember, life: int) -> None:
        if not member.up and member.life == life:
            member.start()

    def _restart_later(self, member: SimMember) -> None:
        delay_ms = self._random.choice((5, 60, 200, 500))
        self.world.scheduler.after(delay_ms, self._start_member, member, member.life)

    # ------------------------------------------------------------ nemesis

    def _strike_later(self) -> None:
        scheduler = self.world.scheduler
        scheduler.at_pace(scheduler.random, self._pace_ms, self._strike)

    def _strike(self) -> None:
        if not self.world.chaotic:
            return
        pick = self._random.randrange(sum(weight for weight, _ in self._menu))
        for weight, fault in self._menu:
            pick -= weight
            if pick < 0:
                fault()
                break
        self._strike_later()

    def _some(self) -> SimMember | None:
        running = [member for member in self.members if member.up and not member.frozen]
        return self._random.choice(running) if running else None

    def _kill_member(self) -> None:
        member = self._some()
        if member is not None:
            member.kill()
            self._restart_later(member)

    def _freeze_member(self) -> None:
        member = self._some()
        if member is not None:
            member.freeze()
            session_ms = member.plan.session_ms / RATE
            frozen_ms = session_ms * self.world.scheduler.between(0.2, 2)
            self.world.scheduler.after(frozen_ms, self._thaw, member, member.life)

    def _thaw(self, member: SimMember, life: int) -> None:
        if member.life == life:
            member.thaw()

    def _lag(self) -> None:
        member = self._some()
        if member is not None:
            max_poll_ms = member.plan.max_poll_ms / RATE
            member.reader.extra_work_ms = max_poll_ms * self.world.scheduler.between(0.3, 1.5)

    def _leave(self) -> None:
        member = self._some()
        if member is not None:
            member.reader.ending = True
            self._restart_when_gone(member, member.life)

    def _restart_when_gone(self, member: SimMember, life: int) -> None:
        if member.up and member.life == life:
            self.world.scheduler.after(20, self._restart_when_gone, member, life)
        elif member.life == life:
            self._restart_later(member)

    def _cut_member(self) -> None:
        member = self._random.choice(self.members)
        self._cut(member.node, list(self.world.brokers))

    def _cut_coordinator(self) -> None:
        """From the other brokers and the controllers, not from members: it does not notice."""
        coordinator = int(self._coordinator().id)
        others = [node for node in self.world.brokers if node != coordinator]
        self._cut(coordinator, [*others, *self.world.controllers])

    def _cut(self, one: int, others: list[int]) -> None:
        net, scheduler = self.world.net, self.world.scheduler
        pairs = {(one, two) for two in others}
        if self._random.random() < 0.7:
            pairs |= {(two, one) for two in others}
        net.blocked |= pairs
        scheduler.note("net", "cut", sorted(pairs))
        scheduler.after(scheduler.between(30, 600), net.blocked.difference_update, pairs)

    def _coordinator(self) -> SimBroker:
        return self.world.find_leader(OFFSETS_KEY)[0]

    def _kill_coordinator(self) -> None:
        broker = self._coordinator()
        if broker.up:
            broker.kill(power=False)
            self.world.scheduler.after(
                self._random.choice((5, 60, 350)), self._start_broker, broker, broker.incarnation
            )

    def _start_broker(self, broker: SimBroker, incarnation: int) -> None:
        if not broker.up and broker.incarnation == incarnation:
            broker.start()

    def _stop_group(self) -> None:
        """Ends all members at about the same time, so that offsets can be reset."""
        group_id = self._random.choice(self.ids)
        for member in self.members:
            if member.plan.group_id == group_id and member.up and not member.frozen:
                if self._random.random() < 0.5:
                    member.reader.ending = True
                    self._restart_when_gone(member, member.life)
                else:
                    member.kill()
                    self._restart_later(member)

    def heal(self) -> None:
        """Starts or thaws all members."""
        for member in self.members:
            if member.frozen:
                member.thaw()
            if not member.up:
                member.start()

    # ------------------------------------------------------------ administrator

    def _administer(self) -> None:
        """Resets offsets, commits without being a member, checks the lag."""
        scheduler, checks = self.world.scheduler, self.world.group_checks
        place = self._random.choice(self.ids), self._random.choice(self.world.keys)
        if not self.world.chaotic or checks.void:
            return
        checks.check_lag(place)
        scheduler.at_pace(scheduler.random, _ADMIN_PAUSE_MS, self._administer)
        group_id, key = place
        end = self.world.checks.canon(key).end
        log_start = min(checks.log_start(key), end)
        where = self._named(key)
        offset = scheduler.random.randrange(log_start, end + 1)
        if scheduler.chance(0.3):
            known = max(checks.committed_offset(place), 0)
            new = gc.NewOffset(where=where, offset=max(0, known - scheduler.random.randrange(3)))
            self._ask(
                lambda number: gc.CommitRequested(
                    request_id=number,
                    group_id=group_id,
                    member_id="",
                    member_epoch=-1,
                    instance_id="",
                    offsets=(new,),
                ),
                1,
            )
            return
        self._resets += 1
        reset_id = f"reset {self._resets}"
        checks.reset_ids.add(reset_id)
        if scheduler.chance(0.1):
            offset = -1
        new = gc.NewOffset(where=where, offset=offset)
        self._ask(
            lambda number: gc.ResetRequested(
                request_id=number, group_id=group_id, offsets=(new,), reset_id=reset_id
            ),
            3,
        )

    def _named(self, key: ReplicaKey) -> NamedPartition:
        topic = self.world.group_checks.catalog.topics[key.topic_id]
        return NamedPartition(topic.name, topic.topic_id, key.partition)

    def _ask(self, make: Callable[[int], gc.Request], attempts: int) -> None:
        """Repeats a request while it is refused; lost answers count as refusals."""
        broker, world = self._coordinator(), self.world

        def respond(answer: Any) -> None:
            world.scheduler.note("admin", "hears", answer)
            if isinstance(answer, PenstockError) and attempts > 1 and world.chaotic:
                world.scheduler.after(40, self._ask, make, attempts - 1)

        if broker.coordinators is not None:
            request = make(world.next_request())
            world.net.call(_ADMIN, broker.id, broker.coordinators.ask, request, respond)

    # ------------------------------------------------------------ the end

    def unsettled(self) -> str:
        """Why the groups are not finished yet; "" = all have read and committed everything."""
        self.heal()
        current = [
            broker.coordinators.current
            for broker in self.world.brokers.values()
            if broker.coordinators is not None
        ]
        live = [one for one in current if one is not None and one.loaded and one.closed is None]
        if len(live) != 1 or not live[0].quiet:
            return f"coordinators are {[str(one) for one in live]}"
        for group_id in self.ids:
            group = live[0].machine.groups.get(group_id)
            if group is None or group.state is not GroupState.STABLE:
                return f"group {group_id} is {group}"
            problem = self._unsettled_members(group_id)
            if problem:
                return problem
            for key in () if self.world.group_checks.void else self.sources(group_id):
                committed = self.world.group_checks.committed_offset((group_id, key))
                if max(committed, 0) < self.world.checks.canon(key).end:
                    return f"group {group_id} has committed {committed} of {key}"
        return ""

    def _unsettled_members(self, group_id: str) -> str:
        owned: list[tuple[str, int]] = []
        for member in self.members:
            if member.plan.group_id != group_id:
                continue
            membership = member.membership
            if membership is None or membership.phase is not Phase.MEMBER:
                return f"{member.name} is {membership and membership.phase}"
            if member.reader.behind:
                return f"{member.name} {member.reader.behind}"
            owned += [(each.topic_id, each.partition) for each in membership.owned]
        every = [(key.topic_id, key.partition) for key in self.sources(group_id)]
        return "" if sorted(owned) == every else f"members of {group_id} own {owned}"

    def check_end(self) -> None:
        """See `GroupChecks.check_end`."""
        places = [(group_id, key) for group_id in self.ids for key in self.sources(group_id)]
        self.world.group_checks.check_end(places)
