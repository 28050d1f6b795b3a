"""Moves that nobody demands: each makes the score strictly smaller, so they end (I38).

Goal after goal, in the order of the score: racks, replicas, bytes, topics. A step for one goal may
not make an earlier one worse; where a single replica cannot go without that, two change places.
When a round over all goals finds nothing, the layout is a fixed point: what is found depends on
the layout alone, not on how it came about.

Of several steps that help a goal equally, the one that helps the next goals most is taken, and
then the one that copies fewest bytes.
"""

from collections.abc import Callable
from itertools import product

from penstock.core.balance.layout import Layout
from penstock.core.balance.score import BYTES_PERCENT, even, within
from penstock.core.balance.search import Asked, Key, pick

Change = Callable[[int], int]
"""What the excess gains, by how much goes from one broker to another."""
SWAPS = 12
"""How many replicas on each side are looked at for a pair that changes places."""


class Improving:
    """Improves a layout. Totals never change meanwhile, so the bands are known at the start."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.members = [at for at, is_open in enumerate(layout.open) if is_open]
        self.counts = even(sum(layout.count[at] for at in self.members), len(self.members))
        held = sum(layout.bytes[at] for at in self.members)
        self.mean_bytes = held // max(1, len(self.members))
        self.held = within(held, len(self.members), BYTES_PERCENT)
        self.topics = [
            even(sum(counts[at] for at in self.members), len(self.members))
            for counts in layout.topic_count
        ]
        self.of_topic: list[list[int]] = [[] for _ in layout.topic_count]
        for partition, moving in enumerate(layout.moving):
            if not moving:
                self.of_topic[layout.topic[partition]].append(partition)

    def run(self) -> None:
        """Until no step is left that helps."""
        goals = (self._racks, self._replicas, self._bytes, self._topics)
        found = True
        while found:
            found = False
            for goal in goals:
                found |= goal()

    # ------------------------------------------------------------ what a step changes

    def _count_change(self, source: int, target: int) -> int:
        count = self.layout.count
        return self.counts.change(count[source], count[target], 1)

    def _topic_change(self, partition: int, source: int, target: int) -> int:
        topic = self.layout.topic[partition]
        count = self.layout.topic_count[topic]
        return self.topics[topic].change(count[source], count[target], 1)

    def _swap_topic_change(self, given: int, taken: int, source: int, target: int) -> int:
        if self.layout.topic[given] == self.layout.topic[taken]:
            return 0
        there = self._topic_change(given, source, target)
        return there + self._topic_change(taken, target, source)

    def _may_swap(self, given: int, taken: int, source: int, target: int) -> bool:
        layout = self.layout
        return (
            layout.may_place(given, target, source)
            and layout.may_place(taken, source, target)
            and layout.rack_change(given, source, target)
            + layout.rack_change(taken, target, source)
            <= 0
        )

    def _swap(self, given: int, taken: int, source: int, target: int) -> None:
        self.layout.move(given, source, target)
        self.layout.move(taken, target, source)

    # ------------------------------------------------------------ racks

    def _racks(self) -> bool:
        """Replicas leave racks that have too many of their partition."""
        layout = self.layout
        found = False
        for partition, moving in enumerate(layout.moving):
            while not moving and layout.rack_excess(partition):
                steps = [
                    (layout.count[target] - layout.count[source], source, target)
                    for source, target in product(layout.placed[partition], self.members)
                    if layout.open[source]
                    and layout.may_place(partition, target, source)
                    and layout.rack_change(partition, source, target) < 0
                ]
                if not steps:
                    break
                _, source, target = min(steps)
                layout.move(partition, source, target)
                found = True
        return found

    # ------------------------------------------------------------ replicas per broker

    def _replicas(self) -> bool:
        found = False
        asked = Asked()
        while self._replica(asked):
            found = True
        return found

    def _replica(self, asked: Asked) -> bool:
        count, held = self.layout.count, self.layout.bytes
        fullest = sorted(self.members, key=lambda at: (-count[at], -held[at], at))
        emptiest = sorted(self.members, key=lambda at: (count[at], held[at], at))
        for source, target in product(fullest, emptiest):
            if (
                count[source] - count[target] < 2
                or (source, target) in asked
                or self._count_change(source, target) >= 0
            ):
                continue
            partition = self._to_even_counts(source, target)
            if asked.note(source, target, found=partition is not None):
                assert partition is not None
                self.layout.move(partition, source, target)
                return True
        return False

    def _to_even_counts(self, source: int, target: int) -> int | None:
        layout = self.layout
        over = (layout.bytes[source] - self.mean_bytes) // max(
            1, layout.count[source] - self.counts.high
        )
        under = (self.mean_bytes - layout.bytes[target]) // max(
            1, self.counts.low - layout.count[target]
        )

        change = self.held.changes(layout.bytes[source], layout.bytes[target])
        topics: dict[int, int] = {}

        def key(partition: int) -> Key:
            size, topic = layout.size[partition], layout.topic[partition]
            if topic not in topics:
                topics[topic] = self._topic_change(partition, source, target)
            return (
                layout.rack_change(partition, source, target) > 0,
                change(size),
                topics[topic],
                size,
                partition,
            )

        partition = pick(layout, source, target, max(0, over + under) // 2, key)
        if partition is None or layout.rack_change(partition, source, target) > 0:
            return None
        return partition

    # ------------------------------------------------------------ bytes per broker

    def _bytes(self) -> bool:
        held = self.layout.bytes
        found = False
        asked = Asked()
        for source in sorted(self.members, key=lambda at: (-held[at], at)):
            while self._shift_from(source, asked):
                found = True
        return found

    def _shift_from(self, source: int, asked: Asked) -> bool:
        held = self.layout.bytes
        for target in sorted(self.members, key=lambda at: (held[at], at)):
            outside = held[source] > self.held.high or held[target] < self.held.low
            if held[source] - held[target] <= 1 or not outside or (source, target) in asked:
                continue
            if asked.note(source, target, found=self._shift(source, target)):
                return True
        return False

    def _shift(self, source: int, target: int) -> bool:
        """Brings the bytes of two brokers closer, by one replica or by two that change places."""
        held = self.layout.bytes
        over, under = held[source] - self.mean_bytes, self.mean_bytes - held[target]
        wanted = min(over, under) if over > 0 and under > 0 else (over + under) // 2
        if self._count_change(source, target) <= 0:
            partition = self._single(source, target, wanted)
            if partition is not None:
                self.layout.move(partition, source, target)
                return True
        pair = self._pair(source, target, wanted)
        if pair is not None:
            self._swap(*pair, source, target)
        return pair is not None

    def _single(self, source: int, target: int, wanted: int) -> int | None:
        layout = self.layout

        change = self.held.changes(layout.bytes[source], layout.bytes[target])

        def key(partition: int) -> Key:
            gain = change(layout.size[partition])
            worse = layout.rack_change(partition, source, target) > 0
            return worse or gain >= 0, gain, partition

        partition = pick(layout, source, target, wanted, key)
        return None if partition is None or key(partition)[0] else partition

    def _pair(self, source: int, target: int, wanted: int) -> tuple[int, int] | None:
        layout = self.layout
        entries = layout.on[target]
        step = max(1, len(entries) // SWAPS)
        change = self.held.changes(layout.bytes[source], layout.bytes[target])
        found: list[tuple[Key, tuple[int, int]]] = []
        for taken_size, _, _, taken in entries[::step]:
            for given in layout.around(source, taken_size + wanted, SWAPS):
                gain = change(layout.size[given] - taken_size)
                if gain < 0 and self._may_swap(given, taken, source, target):
                    topic = self._swap_topic_change(given, taken, source, target)
                    copied = layout.size[given] + taken_size
                    found.append(((gain, topic, copied, given, taken), (given, taken)))
                    break
        return min(found)[1] if found else None

    # ------------------------------------------------------------ replicas of a topic per broker

    def _topics(self) -> bool:
        found = False
        for topic in range(len(self.topics)):
            asked = Asked()
            count = self.layout.topic_count[topic]
            while self.topics[topic].total(count[at] for at in self.members):
                if not self._even_topic(topic, asked):
                    break
                found = True
        return found

    def _even_topic(self, topic: int, asked: Asked) -> bool:
        band = self.topics[topic]
        count = self.layout.topic_count[topic]
        givers = sorted(self.members, key=lambda at: (-count[at], at))
        for source, target in product(givers, givers[::-1]):
            if (
                count[source] - count[target] < 2
                or (source, target) in asked
                or band.change(count[source], count[target], 1) >= 0
            ):
                continue
            own = [one for one in self.of_topic[topic] if source in self.layout.placed[one]]
            alone = self._count_change(source, target) <= 0
            change = self.held.changes(self.layout.bytes[source], self.layout.bytes[target])
            others: dict[int, bool] = {}
            given = any(
                (alone and self._give(partition, source, target, change))
                or self._exchange(partition, source, target, change, others)
                for partition in own
                if self.layout.may_place(partition, target, source)
            )
            if asked.note(source, target, found=given):
                return True
        return False

    def _give(self, partition: int, source: int, target: int, change: Change) -> bool:
        """A replica alone, where that makes no earlier goal worse. `change`: of the bytes."""
        layout = self.layout
        if change(layout.size[partition]) > 0 or layout.rack_change(partition, source, target) > 0:
            return False
        layout.move(partition, source, target)
        return True

    def _is_better(self, topic: int, other: int, source: int, target: int) -> bool:
        """Whether the sum of both topics is better if a replica of the first, on `source`, and one
        of the other, on `target`, change places."""
        own, theirs = self.layout.topic_count[topic], self.layout.topic_count[other]
        there = self.topics[topic].change(own[source], own[target], 1)
        back = self.topics[other].change(theirs[target], theirs[source], 1)
        return other != topic and there + back < 0

    def _exchange(
        self, partition: int, source: int, target: int, change: Change, others: dict[int, bool]
    ) -> bool:
        """Against one of another topic. `change`: of the bytes. `others`: keeps the answers of
        `_is_better`."""
        layout = self.layout
        topic, size = layout.topic[partition], layout.size[partition]
        for taken in layout.around(target, size, SWAPS):
            other = layout.topic[taken]
            if other not in others:
                others[other] = self._is_better(topic, other, source, target)
            if (
                others[other]
                and change(size - layout.size[taken]) <= 0
                and self._may_swap(partition, taken, source, target)
            ):
                self._swap(partition, taken, source, target)
                return True
        return False
