"""Bugs that only topics show which change, planted on purpose as in `planted`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from penstock.core.compaction import plan as plans
from penstock.core.compaction.plan import Cleaned
from penstock.core.control import work
from penstock.core.control.admin import decide_alter_configs
from penstock.core.control.contract import AlterConfigs
from penstock.core.control.draft import Draft
from penstock.core.groups import offsets
from penstock.core.replication.appending import Appending, failed
from penstock.core.replication.contract_follower import BatchesReceived
from penstock.core.replication.contract_leader import LogStartMoved, ProduceRequested
from penstock.core.topic import TopicConfig
from penstock.core.types import Offset, TopicId
from penstock_broker.maintenance import compaction as maintenance
from penstock_broker.maintenance.compaction import Compaction
from penstock_broker.maintenance.retention import Retention
from penstock_broker.metadata.image import ClusterView, Topic
from penstock_broker.replication.assignment import ReplicaAssignment
from penstock_broker.replication.replica import Replica
from penstock_broker.replication.replicas import ReplicaSet
from penstock_broker.services import settings


def retain_by_the_settings_of_a_look_before(patch: Any) -> None:
    """What a look of retention found goes, whatever the settings are by then."""

    async def move(self: Any, replicas: Iterable[Replica]) -> None:
        before = {replica.key: replica.config for replica in replicas}
        now, store, found = self._clock.wall.look(), self._store, {}
        for replica in replicas:
            config = before[replica.key]
            limit_ms = now.ms - config.retention_ms if config.retention_ms >= 0 else None
            limit = config.retention_bytes if config.retention_bytes >= 0 else None
            end = replica.marks.last_stable_offset
            start: Offset | None = store.retention_start(
                replica.slot, older_than_ms=limit_ms, max_bytes=limit, end=end
            )
            found[replica] = start
        await self._clock.sleep(0.02)
        for replica, start in found.items():
            if start is not None:
                self._replicas.handle(replica, LogStartMoved(start))

    patch.setattr(Retention, "_move", move)


def compact_on_under_another_policy(patch: Any) -> None:
    """A pass that has begun is finished, although the policy does not compact any more."""

    may = maintenance._may_go_on
    patch.setattr(
        maintenance,
        "_may_go_on",
        lambda planned, now: may(planned, replace(now, cleanup_policy=planned.cleanup_policy)),
    )


def keep_null_values_as_when_the_pass_began(patch: Any) -> None:
    """A pass that has begun removes null values by the settings of then."""
    may = maintenance._may_go_on
    patch.setattr(
        maintenance,
        "_may_go_on",
        lambda planned, now: may(planned, replace(now, delete_retention_ms=0)),
    )


def remove_null_values_with_what_they_delete(patch: Any) -> None:
    """Null values go as soon as no older record of their key is left."""
    patch.setattr(Cleaned, "tombstones_end", lambda self, _kept_ms, _now_ms: self.end_offset)


def remove_null_values_first(patch: Any) -> None:
    """Null values go in the pass that removes what they delete, which may be interrupted."""
    plan = plans.plan_compaction

    def hasty(facts: Any, config: TopicConfig, *more: Any) -> Any:
        found = plan(facts, config, *more)
        return found and replace(found, tombstones_end=found.end)

    patch.setattr(maintenance, "plan_compaction", hasty)


def compact_what_is_young(patch: Any) -> None:
    """Compaction does not know min.compaction.lag.ms."""
    look = Compaction._look

    def hasty(self: Any, slot: Any, end: Any, config: TopicConfig, *more: Any) -> Any:
        return look(self, slot, end, replace(config, min_compaction_lag_ms=0), *more)

    patch.setattr(Compaction, "_look", hasty)


def forget_settings_that_a_request_leaves_out(patch: Any) -> None:
    """A change of some settings unsets all others."""

    def strict(draft: Draft, request: AlterConfigs, liveness: Any) -> Any:
        topic = draft.topic(request.topic)
        known = () if topic is None else tuple(topic.configs)
        left_out = (name for name in known if name not in request.set_configs)
        unset = tuple({*request.unset_configs, *left_out})
        return decide_alter_configs(draft, replace(request, unset_configs=unset), liveness)

    patch.setattr(work, "decide_alter_configs", strict)


def keep_settings_that_were_known_first(patch: Any) -> None:
    """A replica goes on with the first settings that are not the defaults."""
    assigned = ReplicaSet.assigned

    def stubborn(self: Any, replica: Replica, topic: Topic, state: Any) -> None:
        known = replica.config
        newest = topic if known == TopicConfig() else replace(topic, config=known)
        assigned(self, replica, newest, state)

    patch.setattr(ReplicaSet, "assigned", stubborn)


def keep_the_logs_of_deleted_topics_that_no_replica_has(patch: Any) -> None:
    """A broker that was down when a topic was deleted does not delete what it has of it."""
    drop = ReplicaAssignment.drop_topics

    async def lazy(self: Any, topic_ids: Iterable[TopicId]) -> None:
        running = {key.topic_id for key in self._replicas.by_key}
        await drop(self, [topic_id for topic_id in topic_ids if topic_id in running])

    patch.setattr(ReplicaAssignment, "drop_topics", lazy)


def take_a_former_topic_for_the_one_of_its_name(patch: Any) -> None:
    """A request that names the id of a former topic is served by the one that has its name."""
    topic = ClusterView.topic
    patch.setattr(ClusterView, "topic", lambda self, name, _topic_id="": topic(self, name))


def take_an_id_that_is_not_known_for_a_former_one(patch: Any) -> None:
    """A coordinator refuses for good the id of a topic of which it has not heard yet."""

    class _Everything:
        def __contains__(self, _topic_id: object) -> bool:
            return True

    resolve = offsets.resolve

    def strict(book: Any, where: Any) -> Any:
        known = book.catalog
        book.catalog = replace(known, deleted=_Everything())
        try:
            return resolve(book, where)
        finally:
            book.catalog = known

    patch.setattr(offsets, "resolve", strict)


def refuse_for_its_size_what_was_appended(patch: Any) -> None:
    """A retry is refused by the settings of now, although the batch is in the log."""
    land = Appending.land

    def strict(self: Any, request: ProduceRequested, out: Any, now_ms: int) -> bool:
        if request.refusal is None:
            return land(self, request, out, now_ms)
        out.replies.append(failed(request, request.refusal))
        return False

    patch.setattr(Appending, "land", strict)


def take_batches_of_any_size(patch: Any) -> None:
    """A leader does not know max.message.bytes."""
    patch.setattr(settings, "check_size", lambda _batch, _max_bytes: None)


def copy_only_what_the_limit_of_now_allows(patch: Any) -> None:
    """A follower refuses a batch that its leader took under another limit."""
    handle = ReplicaSet.handle

    def strict(self: Any, replica: Replica, event: Any) -> None:
        if isinstance(event, BatchesReceived):
            limit = replica.config.max_message_bytes
            if any(batch.size_bytes > limit for batch in event.batches):
                return
        handle(self, replica, event)

    patch.setattr(ReplicaSet, "handle", strict)


_Plant = tuple[Callable[[Any], None], dict[str, Any], tuple[str, ...]]
_SETTINGS: Final = {"groups": False, "transactions": False, "moves": False, "rebirth": False}
_REBIRTH: Final = {"groups": False, "transactions": False, "moves": False, "rebirth": True}
_OFFSETS: Final = {"groups": True, "moves": False, "rebirth": True}
_FOUND: Final[tuple[_Plant, ...]] = (
    (retain_by_the_settings_of_a_look_before, _SETTINGS, ("I20",)),
    (compact_on_under_another_policy, _SETTINGS, ("I20",)),
    (compact_what_is_young, _SETTINGS, ("I20",)),
    (keep_null_values_as_when_the_pass_began, _SETTINGS, ("I20",)),
    (remove_null_values_with_what_they_delete, _SETTINGS, ("I20: who read",)),
    (remove_null_values_first, _SETTINGS, ("I20",)),
    (forget_settings_that_a_request_leaves_out, _SETTINGS, ("I21",)),
    (keep_settings_that_were_known_first, _SETTINGS, ("I24",)),
    (refuse_for_its_size_what_was_appended, _SETTINGS, ("I8",)),
    (take_batches_of_any_size, _SETTINGS, ("I23",)),
    (copy_only_what_the_limit_of_now_allows, _SETTINGS, ("I24",)),
    (keep_the_logs_of_deleted_topics_that_no_replica_has, _REBIRTH, ("I24",)),
    (take_a_former_topic_for_the_one_of_its_name, _REBIRTH, ("I9", "I21")),
    (take_an_id_that_is_not_known_for_a_former_one, _OFFSETS, ("I24",)),
)
CHANGE_BUGS: Final = {found[0].__name__: found for found in _FOUND}
"""How each is planted, in which histories, and what may find it."""
