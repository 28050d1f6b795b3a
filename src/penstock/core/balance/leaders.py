"""Preferred leaders are spread by reordering replicas: no byte moves.

Brokers are the nodes of a graph; a partition that A leads is an edge from A to each of its other
replicas. A path from a broker with too many to one with too few, each edge turned over, moves one
leadership from end to end and leaves those between as they were. Searched to the end, that finds
the most even spread there is. Then inflow: leaderships of different weight go, or change places.
"""

from collections import defaultdict
from itertools import product

from penstock.core.balance.layout import Layout
from penstock.core.balance.score import INFLOW_PERCENT, even, within


class Leading:
    """Who leads what in a layout; `scope`: the partitions whose order may change."""

    def __init__(self, layout: Layout, scope: list[int]) -> None:
        self.layout = layout
        self.members = [at for at, may_lead in enumerate(layout.may_lead) if may_lead]
        self.rate = [one.bytes_per_second for one in layout.facts]
        self.count = [0] * len(layout.brokers)
        self.inflow = [0] * len(layout.brokers)
        for partition, replicas in enumerate(layout.placed):
            self.count[replicas[0]] += 1
            self.inflow[replicas[0]] += self.rate[partition]
        self.edges: dict[tuple[int, int], set[int]] = defaultdict(set)
        for partition in scope:
            self._link(partition)
        parts = len(self.members)
        self.counts = even(sum(self.count[at] for at in self.members), parts)
        inflow = sum(self.inflow[at] for at in self.members)
        self.inflows = within(inflow, parts, INFLOW_PERCENT)

    def _link(self, partition: int) -> None:
        leader, *others = self.layout.placed[partition]
        if self.layout.may_lead[leader]:
            for other in others:
                if self.layout.may_lead[other]:
                    self.edges[leader, other].add(partition)

    def run(self) -> None:
        """Until no reordering helps."""
        self._even_counts()
        found = True
        while found:
            found = False
            for source in self._by_inflow():
                found |= self._even_inflow(source)

    def excess(self) -> int:
        """Leaderships outside the band."""
        return self.counts.total(self.count[at] for at in self.members)

    def inflow_excess(self) -> int:
        """Bytes/s outside the band."""
        return self.inflows.total(self.inflow[at] for at in self.members)

    def _turn(self, partition: int, target: int) -> None:
        replicas = self.layout.placed[partition]
        source = replicas[0]
        for other in replicas[1:]:
            self.edges[source, other].discard(partition)
        replicas.remove(target)
        replicas.insert(0, target)
        self.layout.touched.setdefault(partition)
        self._link(partition)
        self.count[source] -= 1
        self.count[target] += 1
        self.inflow[source] -= self.rate[partition]
        self.inflow[target] += self.rate[partition]

    # ------------------------------------------------------------ as many for everybody

    def _even_counts(self) -> None:
        while any(self._shift(at) for at in sorted(self.members, key=self._fullest)):
            pass

    def _fullest(self, at: int) -> tuple[int, int]:
        return -self.count[at], at

    def _shift(self, source: int) -> bool:
        """One leadership less for `source`: for one that has too few, or else at least 2 fewer."""
        count, band = self.count, self.counts
        below = {at for at in self.members if count[at] < count[source] - 1}
        wanting = {at for at in below if count[at] < band.high}
        path = self._path(source, wanting) or self._path(source, below - wanting)
        for giver, target in path:
            partition = min(
                self.edges[giver, target],
                key=lambda one: (one not in self.layout.touched, self.rate[one], one),
            )
            self._turn(partition, target)
        return bool(path)

    def _path(self, source: int, sinks: set[int]) -> list[tuple[int, int]]:
        """The shortest way from `source` to one of `sinks`, as edges; [] = none."""
        came_from = {source: -1}
        queue = [source] if sinks else []
        for at in queue:
            for other in self.members:
                if other in came_from or not self.edges.get((at, other)):
                    continue
                came_from[other] = at
                if other in sinks:
                    return self._trace(came_from, other)
                queue.append(other)
        return []

    def _trace(self, came_from: dict[int, int], end: int) -> list[tuple[int, int]]:
        path = []
        while came_from[end] >= 0:
            path.append((came_from[end], end))
            end = came_from[end]
        return path[::-1]

    # ------------------------------------------------------------ as much for everybody

    def _by_inflow(self) -> list[int]:
        return sorted(self.members, key=lambda at: (-self.inflow[at], at))

    def _even_inflow(self, source: int) -> bool:
        found = False
        while self._relieve(source):
            found = True
        return found

    def _relieve(self, source: int) -> bool:
        """One leadership less for `source`, or a lighter one in exchange."""
        inflow = self.inflow
        for target in reversed(self._by_inflow()):
            outside = inflow[source] > self.inflows.high or inflow[target] < self.inflows.low
            if not outside or inflow[source] <= inflow[target]:
                continue
            best = self._best_turn(source, target)
            if best is not None:
                given, taken = best
                self._turn(given, target)
                if taken is not None:
                    self._turn(taken, source)
                return True
        return False

    def _best_turn(self, source: int, target: int) -> tuple[int, int | None] | None:
        here, there = self.inflow[source], self.inflow[target]
        givable = sorted(self.edges.get((source, target), ()))
        single = self.counts.change(self.count[source], self.count[target], 1) <= 0
        takeable: list[int | None] = [None] if single else []
        takeable += sorted(self.edges.get((target, source), ()))
        steps = [
            (change, taken is not None, index)
            for index, (given, taken) in enumerate(product(givable, takeable))
            if (
                change := self.inflows.change(
                    here, there, self.rate[given] - (0 if taken is None else self.rate[taken])
                )
            )
            < 0
        ]
        if not steps:
            return None
        given, taken = divmod(min(steps)[2], len(takeable))
        return givable[given], takeable[taken]
