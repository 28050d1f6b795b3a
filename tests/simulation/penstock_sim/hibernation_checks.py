"""What holds while a cluster goes to sleep, sleeps and wakes (I39).

asked to sleep ─▶ stored ─▶ at rest ─▶ asked to wake
                   └ nobody is elected, and no seat is lost but with the data behind it
                              └ all that was committed is on every disk; nothing is acknowledged,
                                and no controller is still to carry out an earlier wake
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.core.control.documents import ClusterDocument
from penstock.core.control.partition import PartitionDocument
from penstock.core.types import NO_LEADER, BrokerId, ReplicaKey
from penstock_sim.scheduler import RuleError

if TYPE_CHECKING:
    from penstock_sim.broker import SimBroker
    from penstock_sim.controller import ControllerShell, SimController
    from penstock_sim.world import World


class HibernationChecks:
    """Of one history."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_stored = False
        """The stored cluster hibernates."""
        self._version = 0
        """The metadata version that began it: what lands late may be from before."""
        self.sleeps = 0
        self.wakes = 0
        self.taken_back = 0
        self._wanted = False
        """What was asked for last: a write that wakes changes the partitions first."""
        self._is_at_rest = False
        self._ends: dict[ReplicaKey, int] = {}
        """What was committed when everybody was asked last."""
        self._runs: dict[int, str] = {}
        """Who was asked then."""
        self._has_lost = False
        """A broker has lost data since all was at rest."""
        self._late: set[tuple[BrokerId, ReplicaKey]] = set()
        """Seats that a deposed controller ended in the store before all was at rest."""
        self._waking: list[tuple[SimController, ControllerShell | None]] = []
        """Runs of controllers that were asked to wake, and have not answered."""

    # ------------------------------------------------------------ what the operator does

    def asking(self) -> None:
        """Everybody is about to be asked whether it is at rest."""
        checks = self.world.checks
        self._ends = {key: checks.canon(key).end for key in self.world.all_keys}
        self._runs = {number: broker.run for number, broker in self.world.brokers.items()}

    def asked(self, *, hibernating: bool) -> None:
        """A controller is told. Allowing writes ends a sleep, or takes it back before."""
        if self._is_at_rest and not hibernating:
            self.wakes += 1
            if not self._has_lost:
                self._check_whole()
        elif self._wanted and not hibernating:
            self.taken_back += 1
        self._wanted = hibernating
        self._is_at_rest = self._is_at_rest and hibernating

    def waking(self, controller: SimController) -> Callable[[object], None]:
        """A controller is asked to wake the cluster; the result takes its answer."""
        asked = (controller, controller.shell)
        self._waking.append(asked)
        return lambda _answer: self._waking.remove(asked)

    def at_rest(self) -> None:
        """The operator says so: brokers are to stop now, all at once."""
        world = self.world
        self.sleeps += 1
        self._is_at_rest = True
        self._late.clear()
        self._has_lost = not all(map(self._ran_throughout, world.brokers.values()))
        still = world.transactions is None  # else markers may come at any time
        for key in world.all_keys:
            canon = world.checks.canon(key)
            if still and key in world.data_keys:
                self._ends[key] = canon.end
            for member in world.checks.stored[key].state.replicas:
                self._check_durable(world.brokers[member], key)
            canon.disk_end = max(canon.disk_end, self._ends.get(key, 0))
        self._check_all_in_sync()
        self._check_no_wake()

    def _check_no_wake(self) -> None:
        """It would be stored while the brokers sleep. One that is deposed stores nothing more."""
        for controller, run in self._waking:
            if controller.shell is run and not controller.is_deposed:
                raise RuleError(
                    f"I39: the cluster stops, and {controller.name} is still to wake it"
                )

    def _check_durable(self, broker: SimBroker, key: ReplicaKey) -> None:
        slot, end = broker.disk.slot(key), self._ends.get(key, 0)
        durable = 0 if slot is None else broker.disk.log_end(slot, durable=True)
        if self._ran_throughout(broker) and durable < end:
            raise RuleError(
                f"I39: all is at rest, but {broker.name} has fsynced {key} up to {durable}, "
                f"committed is {end}"
            )

    def _check_all_in_sync(self) -> None:
        """As brokers know it: a deposed controller may have ended seats, which nobody has read."""
        for key in self.world.all_keys:
            away = self._away(self.world.checks.newest_told(key))
            known = {one for one in away if self._ran_throughout(self.world.brokers[one])}
            if known:
                raise RuleError(f"I39: the cluster stops, and {known} have no seat in {key}")
            self._late |= {(one, key) for one in self._away(self.world.checks.stored[key])}

    def _check_whole(self) -> None:
        for key in self.world.all_keys:
            found = self._away(self.world.checks.stored[key])
            away = {one for one in found if (one, key) not in self._late}
            if away:
                raise RuleError(f"I39: the cluster wakes, and {away} have no seat in {key}")

    @staticmethod
    def _away(document: PartitionDocument) -> set[BrokerId]:
        return {*document.state.replicas} - {*document.state.isr}

    def _ran_throughout(self, broker: SimBroker) -> bool:
        """The run that has answered, and no later one, which may lack what it has said."""
        return self._runs.get(int(broker.id)) == broker.run and broker.intact

    # ------------------------------------------------------------ what happens

    def down(self, broker: SimBroker) -> None:
        """After a crash."""
        self._has_lost = self._has_lost or not broker.intact

    def stored(self, cluster: ClusterDocument) -> None:
        """After every change of the cluster document."""
        if cluster.hibernating and not self.is_stored:
            self._version = cluster.metadata_version
        self.is_stored = cluster.hibernating

    def changed(
        self,
        key: ReplicaKey,
        before: PartitionDocument | None,
        after: PartitionDocument,
        metadata_version: int,
    ) -> None:
        """After a change of the stored partition, or of a journal that counts."""
        sleeps = self.is_stored and self._wanted and metadata_version > self._version
        if before is None or not sleeps:
            return
        old, new = before.state, after.state
        if new.leader not in {NO_LEADER, old.leader}:
            raise RuleError(f"I39: {key} gets a leader while it hibernates: {before} to {after}")
        gone = {*old.isr} - {*new.isr}
        if any((int(one), key) not in self.world.checks.lost for one in gone):
            raise RuleError(f"I39: {key} loses a seat while it hibernates: {before} to {after}")

    def acknowledged(self, key: ReplicaKey, who: str) -> None:
        """A leader has answered success to a producer."""
        if self._is_at_rest and key in self.world.data_keys:
            raise RuleError(f"I39: {who} acknowledges a record while the cluster is at rest")
