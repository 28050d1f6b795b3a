"""An import or an export from its plan to its verdict; the command line only shows it.

prepare: topics, settings, partitioner, what is there ──▶ plans (nothing is written)
execute: create ──▶ copy ──▶ verdicts ──▶ groups
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from penstock.core.topic import PARTITIONER
from penstock.core.types import TopicPartition
from penstock.errors import MisuseError
from penstock.migration.copying import SAMPLE_KEYS, Copy
from penstock.migration.fitting import unfit
from penstock.migration.groups import Translation, translated
from penstock.migration.model import Source, Target, Topic
from penstock.migration.plan import (
    Action,
    Spread,
    TopicPlan,
    Translated,
    created_again,
    due,
    gone,
    into_kafka,
    into_penstock,
    other_keys,
    planned,
    spread_by,
)
from penstock.migration.reading import polled
from penstock.migration.verifying import Verdict, verdicts
from penstock.migration.watching import Watch

SAMPLE_RECORDS: Final = 5_000
"""Per partition, if few of them have a key."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One direction: from `source` to `target`.

    `check`: what the target refuses about a new topic. `translate`: a topic's settings there.
    `spreads`: producers there choose partitions by a setting of the topic.
    """

    source: Source
    target: Target
    check: Callable[[Topic], str]
    translate: Callable[[Topic], Translated]
    spreads: bool = False

    def prepare(self, patterns: Sequence[str]) -> list[TopicPlan]:
        """What would be done; writes nothing."""
        return [self._plan(topic) for topic in self.source.topics(patterns)]

    def _plan(self, topic: Topic) -> TopicPlan:
        there = self.target.find(topic.name)
        replicas = there.replicas if there else min(topic.replicas, self.target.brokers)
        topic = replace(topic, replicas=replicas)
        wheres = partitions_of(topic)
        sources = self.source.bounds(wheres)
        left = {where: sources[where].end - sources[where].first for where in wheres}
        bounds, started, why_gone = [], False, ""
        if there is not None and there.partitions == topic.partitions:
            bounds = list(self.target.bounds(wheres).values())
            for where, progress in self.target.progress(wheres).items():
                if progress is not None:
                    started = True
                    why_gone = why_gone or created_again(topic, progress.topic_id)
                    why_gone = why_gone or gone(where, progress.source_next, sources[where])
                    left[where] = max(0, sources[where].end - progress.source_next)
        return planned(
            topic,
            self.translate(topic),
            there,
            bounds,
            started=started,
            check=self.check,
            records=sum(left.values()),
            gone=why_gone,
        )

    def scanned(self, plans: Sequence[TopicPlan], tick: Callable[[int], None]) -> list[TopicPlan]:
        """The plans; refused too where the target cannot take a record that is to be copied. Reads
        them all; writes nothing."""
        meant = [plan for plan in plans if plan.action is not Action.REFUSED]
        wheres = [where for plan in meant for where in partitions_of(plan.wanted)]
        starts = {where: bounds.first for where, bounds in self.source.bounds(wheres).items()}
        for plan in meant:
            if plan.action is Action.CONTINUE:
                for where, at in self.target.progress(partitions_of(plan.wanted)).items():
                    starts[where] = starts[where] if at is None else at.source_next
        topics = {plan.wanted.name: plan.meets or plan.wanted for plan in meant}
        reasons = unfit(self.source, self.target, starts, topics, tick)
        return [
            replace(plan, action=Action.REFUSED, reason=reasons[plan.wanted.name])
            if plan.wanted.name in reasons
            else plan
            for plan in plans
        ]

    def check_groups(self, groups: Sequence[str], plans: Sequence[TopicPlan]) -> None:
        """Raises MisuseError for one that has no offsets in these topics."""
        topics = [plan.wanted.name for plan in plans]
        for group in groups:
            if not self.source.group_offsets(group, topics):
                raise MisuseError(
                    f"group {group!r} has no committed offsets at {self.source.name} in "
                    f"{', '.join(topics)}"
                )

    def execute(
        self,
        plans: Sequence[TopicPlan],
        *,
        follow: bool,
        stop: Callable[[], bool],
        report: Callable[[Copy], None],
        patterns: Sequence[str] = (),
    ) -> "Done":
        """Creates, copies. `patterns`: what the plans were made of; (): their names.

        Raises MisuseError if a plan is refused: then nothing was written."""
        refused = [plan for plan in plans if plan.action is Action.REFUSED]
        if refused:
            raise MisuseError(
                "; ".join(f"topic {each.wanted.name!r}: {each.reason}" for each in refused)
            )
        for plan in plans:
            if plan.action is Action.CREATE:
                self.target.create(plan.wanted)
        wheres = [where for plan in plans for where in partitions_of(plan.wanted)]
        copy = Copy(self.source, self.target, wheres)
        copy.begin()
        watch = Watch(self.source, self.target, patterns or copy.topics, _taken(plans, copy))
        complete = copy.run(follow=follow, stop=stop, report=report, watch=watch)
        waiting = self.source.waiting(wheres) if complete else {}
        elsewhere = [self._spread_as_copied(plan, copy) for plan in plans] if self.spreads else []
        reasons = "; ".join(filter(None, elsewhere))
        return Done(self, copy, complete and not waiting, tuple(plans), waiting, reasons)

    def _spread_as_copied(self, plan: TopicPlan, copy: Copy) -> str:
        """Sets the partitioner that the copied keys lie by, if there were too few of them before.
        Returns why it cannot be, or ""."""
        name, settings = plan.wanted.name, plan.settings
        keys = {w.partition: found for w, found in copy.keys.items() if w.topic == name}
        spread = spread_by(keys, plan.wanted.partitions)
        if settings.partitioner is not None or spread is Spread.UNKNOWN:
            return ""
        found = into_penstock(plan.wanted, spread)
        settings.dropped.pop(PARTITIONER, None)
        settings.dropped.update({k: v for k, v in found.dropped.items() if k == PARTITIONER})
        there = self.target.find(name)
        reason = other_keys(found.partitioner, there) if there else ""
        if there is None or not reason or PARTITIONER in there.configs:
            return reason
        settings.kept[PARTITIONER] = spread.value
        self.target.alter(name, {PARTITIONER: spread.value})
        return ""


@dataclass(frozen=True, slots=True)
class Done:
    """A copy that has ended. `complete`: it has all that the source had. `waiting`: offsets by
    partition that could not be copied: they are behind an open transaction. `elsewhere`: topics
    whose keys producers there would put elsewhere, and what to do; or ""."""

    migration: Migration
    copy: Copy
    complete: bool
    plans: tuple[TopicPlan, ...]
    waiting: Mapping[TopicPartition, int] = field(default_factory=dict)
    elsewhere: str = ""

    def verify(self, tick: Callable[[int], None]) -> list[Verdict]:
        return verdicts(self.migration.target, self.copy.progress, tick)

    def release(self) -> None:
        """Topics get the settings that they were copied without, as their limits of compaction."""
        for plan in self.plans:
            topic = self.migration.target.find(plan.wanted.name)
            changes = due(plan.settings, topic) if topic else {}
            if topic and changes:
                self.migration.target.alter(topic.name, changes)

    def move_group(self, group: str) -> list[Translation]:
        """Commits a group's offsets at the target. Partitions that the copy has not passed are left
        out, and those where the group is as far there already."""
        topics = {where.topic for where in self.copy.progress}
        committed = self.migration.source.group_offsets(group, topics)
        target = self.migration.target
        there = target.group_offsets(group, topics)
        moved = [
            replace(each, here=there[each.where])
            if there.get(each.where, -1) >= each.target >= 0
            else each
            for each in translated(self.migration.source, target, committed, self.copy.progress)
        ]
        offsets = {each.where: each.target for each in moved if each.target >= 0 > each.here}
        if offsets:
            target.set_group(group, offsets)
        return moved


def _taken(plans: Sequence[TopicPlan], copy: Copy) -> dict[str, Topic]:
    """The source's topics as the copy took them."""
    ids = {where.topic: each.topic_id for where, each in copy.progress.items()}
    return {
        plan.wanted.name: replace(plan.wanted, topic_id=ids[plan.wanted.name]) for plan in plans
    }


def partitions_of(topic: Topic) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for index in range(topic.partitions)]


def settings_here(source: Source, topic: Topic) -> Translated:
    """Settings of a topic of Kafka for one here; its partitioner is found from its keys."""
    return into_penstock(topic, _spread(source, topic))


def settings_there(topic: Topic) -> Translated:
    return into_kafka(topic)


def _spread(source: Source, topic: Topic) -> Spread:
    """Raises CopyError if the records to tell by do not come."""
    wheres = partitions_of(topic)
    bounds = source.bounds(wheres)
    waited = [where for where in wheres if bounds[where].first < bounds[where].end]
    if topic.partitions < 2 or not waited:
        return Spread.UNKNOWN
    samples: dict[int, list[bytes]] = {where.partition: [] for where in wheres}
    seen = dict.fromkeys(wheres, 0)
    reader = source.read({where: bounds[where].first for where in waited})

    def is_over() -> bool:
        return all(
            reader.at_end(where)
            or len(samples[where.partition]) >= SAMPLE_KEYS
            or seen[where] >= SAMPLE_RECORDS
            for where in waited
        )

    for where, rows in polled(reader, is_over, lambda: f"{source.name}, topic {topic.name}"):
        keys = samples[where.partition]
        keys += [key for key in rows.keys if key is not None][: SAMPLE_KEYS - len(keys)]
        seen[where] += len(rows)
    return spread_by(samples, topic.partitions)
