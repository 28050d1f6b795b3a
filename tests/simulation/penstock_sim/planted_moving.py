"""Bugs put into the moves of replicas, on all three sides: controller, leader, broker (I29-I31),
and into drains: the planner, the operator's plan and proof (I31, I34, I38).

Each has the options of the histories that bring it out, where chance alone does so too rarely, and
how the violation may begin.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from penstock.core.balance import forced
from penstock.core.balance.layout import Layout
from penstock.core.control import copies, election, moves, registration
from penstock.core.control.contract import BrokerRegistered
from penstock.core.control.machine import ControllerMachine
from penstock.core.replication.followers import Followers
from penstock.core.replication.isr import InSyncReplicas
from penstock.core.replication.leader import Leader
from penstock.core.types import BrokerId, ControllerEpoch
from penstock.proto.v1.controller_pb2 import ClusterImage
from penstock_broker.broker.membership import Membership
from penstock_broker.controller.metadata_store.journaled import JournaledStore
from penstock_broker.replication.assignment import ReplicaAssignment
from penstock_operator.move_model import MoveFacts
from penstock_operator.plan import drain
from penstock_sim.planted_shells import all_of, in_text, rewritten


def in_function(function: Callable[..., Any], old: str, new: str) -> Callable[[Any], None]:
    """As `in_text`, of a function of a module; wherever it was imported."""

    def plant(patch: Any) -> None:
        changed = rewritten(function, old, new)
        for module in list(sys.modules.values()):
            if vars(module).get(function.__name__) is function:
                patch.setattr(module, function.__name__, changed)

    return plant


def count_copies_from_the_start(patch: Any) -> None:
    """A leader takes those that copy for caught up as soon as they are named."""
    joining = Leader._joining

    def everybody(self: Leader, now_ms: int) -> list[BrokerId]:
        found = joining(self, now_ms)
        return [*found, *(one for one in self.isr.state.adding if one not in found)]

    patch.setattr(Leader, "_joining", everybody)


def switch_without_the_union(patch: Any) -> None:
    """The high watermark does not wait for those whose switch is under way."""

    def maximal(self: InSyncReplicas) -> Any:
        return self._proposed.union(self.state.isr) - {*self.state.adding}

    patch.setattr(InSyncReplicas, "maximal", property(maximal))


def take_the_journal_for_the_store(patch: Any) -> None:
    """Moves begin and end while only brokers keep what is decided."""
    patch.setattr(ControllerMachine, "_journaling", property(_never, lambda _self, _value: None))
    patch.setattr(JournaledStore, "journaling", property(_never))


def _never(_self: object) -> bool:
    return False


def keep_the_former_factor(patch: Any) -> None:
    """A leader limits min.insync.replicas to the replicas of its first state."""

    def min_isr(self: Leader) -> int:
        factor: int = self.__dict__.setdefault("factor", len(self.isr.state.replicas))
        return min(self.config.min_insync_replicas, factor)

    patch.setattr(Leader, "min_isr", property(min_isr))


def forget_what_is_to_be_dropped(patch: Any) -> None:
    """A broker that runs again is taken for a new one, though its directory is the same."""
    end_former_run = registration._end_former_run

    def forgetful(draft: Any, event: BrokerRegistered, *others: Any) -> None:
        registration._forget_dropping(draft, event.broker_id)
        end_former_run(draft, event, *others)

    patch.setattr(registration, "_end_former_run", forgetful)


def _faults(*names: str) -> dict[str, Any]:
    return {"faults": frozenset(names)}


def drop_before_the_version_is_remembered(patch: Any) -> None:
    """A broker applies an image and only then remembers that it knows it."""

    async def apply(self: Membership, image: ClusterImage) -> None:
        first = not self._view.complete
        assert self.tasks is not None
        await self._replication.apply(image, self.tasks)
        self._directory.remember_metadata(
            ControllerEpoch(image.controller_epoch), image.metadata_version
        )
        self._reports.applied()
        if first:
            await self._serving()

    patch.setattr(Membership, "apply", apply)


MOVING_BUGS: Final[dict[str, tuple[Callable[[Any], None], dict[str, Any], tuple[str, ...]]]] = {
    # ---------------------------------------------------------------- the leader
    "count_copies_from_the_start": (count_copies_from_the_start, {}, ("I5", "I29")),
    "switch_without_the_union": (switch_without_the_union, {}, ("I3", "I5", "I29")),
    "a_seat_without_a_sync": (
        in_text(
            Leader,
            "_may_join",
            "sync_floor = max(progress.sync_floor, self._disk_acked)",
            "sync_floor = max(self.epoch_start, self._disk_acked)",
        ),
        {},
        ("I29",),
    ),
    "keep_the_former_factor": (
        keep_the_former_factor,
        {**_faults("kill_broker", "cut_broker_off"), "factor": 1},
        ("I5",),
    ),
    "feed_former_followers": (
        in_text(Followers, "_dismiss", "self.stop_feed(broker, progress, out)", "pass"),
        {},
        ("I29",),
    ),
    # ---------------------------------------------------------------- the controller
    "switch_with_fewer_in_sync": (
        in_function(moves.lacks, "if len(seats) < wanted:", "if not seats:"),
        _faults("kill_broker", "cut_broker_off"),
        ("I29",),
    ),
    "a_new_leader_in_the_same_epoch": (
        in_function(
            moves.switch,
            "leader, epoch = _able(document, seats, liveness)[0], LeaderEpoch(epoch + 1)",
            "leader = _able(document, seats, liveness)[0]",
        ),
        {},
        ("I1",),
    ),
    "a_copy_that_lost_its_data_may_join": (
        in_function(
            election.forget,
            "if broker_id not in state.adding and state == document.state:",
            "if state == document.state:",
        ),
        {**_faults("slow_network"), "factor": 3, "journal": False},
        ("I5", "I7", "I29"),
    ),
    "take_the_journal_for_the_store": (
        take_the_journal_for_the_store,
        _faults("store_away"),
        ("I30",),
    ),
    "a_cancel_forgets_the_copies": (
        in_function(
            moves._with_adding,
            "ended = _others(state.adding, adding)",
            "ended: list[BrokerId] = []",
        ),
        {},
        ("I30",),
    ),
    "elect_a_copy": (
        in_function(
            election._choose_leader,
            """
            for kind, group in groups:
                for broker_id in document.lossy if kind is ElectionKind.LOSSY else state.replicas:
            """,
            """
            for kind, group in [*groups, (ElectionKind.UNCLEAN, liveness.live & {*state.adding})]:
                for broker_id in (*state.replicas, *state.adding):
            """,
        ),
        {},
        ("I29", "ClusterError: metadata object topic/events is unreadable"),
    ),
    "an_activation_undoes_a_cancel_beside_it": (
        in_function(
            copies._moving, "topic = draft.topic(name)", "topic = draft.base.topics.get(name)"
        ),
        {},
        ("I1", "I21", "I29", "I31"),
    ),
    "forget_what_is_to_be_dropped": (forget_what_is_to_be_dropped, {}, ("I30",)),
    # ---------------------------------------------------------------- the broker
    "drop_what_is_not_among_the_replicas": (
        in_text(
            ReplicaAssignment,
            "drop_former",
            "if self._replicas.broker_id not in state.dropping or state.version <= known:",
            "if self._replicas.broker_id in state.replicas or replica is None:",
        ),
        {},
        ("I30",),
    ),
    "drop_before_the_version_is_remembered": (drop_before_the_version_is_remembered, {}, ("I30",)),
}
"""For histories in which replicas move."""

DRAIN_BUGS: Final[dict[str, tuple[Callable[[Any], None], dict[str, Any], tuple[str, ...]]]] = {
    # ---------------------------------------------------------------- the planner
    "take_the_drained_broker_as_a_target": (
        in_function(
            forced.drain,
            "for source in [one for one in layout.placed[partition] if one in gone]:",
            "for source in [one for one in layout.placed[partition] if one not in gone]:",
        ),
        {},
        ("I38",),
    ),
    "place_replicas_on_dead_brokers": (
        in_text(
            Layout,
            "__init__",
            "broker.alive and not broker.cordoned and broker.id not in leaving",
            "not broker.cordoned and broker.id not in leaving",
        ),
        {},
        ("I38",),
    ),
    "place_replicas_on_cordoned_brokers": (
        in_text(
            Layout,
            "__init__",
            "broker.alive and not broker.cordoned and broker.id not in leaving",
            "broker.alive and broker.id not in leaving",
        ),
        {},
        ("I38",),
    ),
    "fill_one_rack": (
        all_of(
            in_text(Layout, "_full_racks", "if len(self._open_racks) < 2:", "if True:"),
            in_text(
                Layout,
                "best",
                "self.in_rack(partition, self.rack[at]) - (self.rack[at] == leaves),",
                "0,",
            ),
        ),
        {},
        ("I38",),
    ),
    # ---------------------------------------------------------------- the operator
    "proven_empty_while_a_target_is_queued": (
        in_text(
            MoveFacts,
            "names",
            "return dropping or self.needs(broker_id)",
            """
            known = () if self.seen is None else self.seen.facts.partitions
            return dropping or any(broker_id in one.replicas for one in known)
            """,
        ),
        {**_faults("kill_broker"), "factor": 1},
        ("I34",),
    ),
    "leave_moves_of_a_drain_that_is_taken_back": (
        in_function(drain.plan_cancel, "if leaving:", "if False:"),
        {},
        ("I31",),
    ),
    "forget_the_cordon_of_a_drain_that_is_taken_back": (
        in_function(
            drain.plan_cancel,
            'return (CordonBrokers(changes, f"{brokers_named(sorted(ids))}: no longer drained"),)',
            "return ()",
        ),
        {},
        ("I31",),
    ),
}
"""For histories in which brokers are drained."""
