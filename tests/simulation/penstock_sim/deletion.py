"""A topic that is deleted while transactions write to it (I22).

It is deleted as soon as a coordinator knows of a transaction that it has joined, or whose end it
has not stored. From then on no marker can be stored in it: this is the one participant that a
coordinator may give up, and every transaction must end nevertheless.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.control import contract as cc
from penstock.core.transactions.state import topics_of
from penstock.core.types import ReplicaKey, TopicId

if TYPE_CHECKING:
    from penstock_sim.world import World

TOPIC: Final = "short-lived"
KEY: Final = ReplicaKey(TopicId("00000000-0000-4000-8000-000000000004"), 0)
_LOOK_MS: Final = 4
_AGAIN_MS: Final = 60


class Deletion:
    """Of the one topic of a history that goes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_done = False
        """It is gone from the metadata store."""

    def start(self) -> None:
        """After a while."""
        scheduler = self.world.scheduler
        scheduler.after(scheduler.between(0.1, 0.8) * self.world.chaos_ms, self._look)

    def comes_back(self) -> bool:
        """A broker was told of it after it was gone, or does not know yet that it is."""
        shells = [broker.shell for broker in self.world.brokers.values()]
        return self.is_done and any(
            shell is not None and KEY.topic_id in shell.view.topics for shell in shells
        )

    def _look(self) -> None:
        if not self.world.chaotic:
            return
        if self._is_in_a_transaction():
            self._delete()
        else:
            self.world.scheduler.after(_LOOK_MS, self._look)

    def _is_in_a_transaction(self) -> bool:
        hosts = [broker.transactions for broker in self.world.brokers.values()]
        current = [host.current for host in hosts if host is not None]
        return any(
            KEY.topic_id in topics_of(branch.record)
            for host in current
            if host is not None and host.loaded
            for holder in host.machine.holders.values()
            for branch in holder.branches.values()
        )

    def _delete(self) -> None:
        if self.is_done or not self.world.chaotic:
            return
        for controller in self.world.controllers.values():
            if controller.active:
                request = cc.DeleteTopics(
                    request_id=self.world.next_request(),
                    cluster_id=self.world.cluster_id,
                    topics=((TOPIC, KEY.topic_id),),
                )
                controller.request(request)
        self.world.scheduler.after(_AGAIN_MS, self._delete)
