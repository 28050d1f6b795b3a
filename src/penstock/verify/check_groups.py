"""The checker of a consumer group: who got which records, and whether commits were right.

    owns ─▶ got, got, … ─▶ leaves        a member's time with a partition: its stint
    stored                               the group's committed offset, seen from outside

Events of one process are in the order in which they happened: a member records what it got before
it polls again, and records that it gives up a partition before it tells anyone. So the next owner's
`owns` comes after the last one's `leaves`, unless the last one was cut off and learned it late;
then it must have been notified that the partition was lost.

Rules: undelivered (I19), shared (I18), passed over (I17), ahead, went back, repeated (I18).
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from penstock.verify.breach import ReportBreach
from penstock.verify.history import Event
from penstock.verify.intervals import IntervalSet

GROUP_RULES: Final = {
    "undelivered": "in the log, but no member of the group got it",
    "shared": "delivered to a member while another one had the partition",
    "passed over": "not the next record by the member's position",
    "ahead": "committed before any member got it",
    "went back": "committed, but later the committed offset was lower",
    "repeated": "committed, but later delivered again to another owner",
}
GROUP_EVENTS: Final = frozenset({"owns", "got", "leaves", "stored"})


@dataclass(slots=True)
class _Stint:
    """A member's time with a partition. `floor`: the committed offset when it began."""

    member: str
    floor: int
    position: int = -1
    overtaken_by: str = ""


@dataclass(slots=True)
class _Shared:
    """One partition as the group saw it."""

    delivered: IntervalSet = field(default_factory=IntervalSet)
    stints: dict[str, _Stint] = field(default_factory=dict)
    reached: int = -1
    stored: int = -1


class GroupChecker:
    """Feed it the group's events in order, then ask for `finish`."""

    def __init__(self, breach: ReportBreach) -> None:
        self._breach = breach
        self._shared: dict[int, _Shared] = defaultdict(_Shared)
        self.seen = False
        """There was a group."""
        self.delivered = 0
        self.redelivered = 0

    def see(self, event: Event) -> None:
        """One of `GROUP_EVENTS`."""
        self.seen = True
        shared = self._shared[event["p"]]
        match event["e"]:
            case "owns":
                self._begins(shared, event)
            case "got":
                self._got(shared, event)
            case "leaves":
                self._ends(shared, event)
            case _:
                self._stored(shared, event)

    def finish(self, logged: dict[int, IntervalSet]) -> None:
        """Compares what was delivered with what is in the log: offsets, per partition."""
        if not self.seen:
            return
        for partition, offsets in logged.items():
            shared = self._shared[partition]
            for lo, hi in offsets.minus(shared.delivered):
                self._breach("undelivered", hi - lo, f"partition {partition}: {lo} to {hi - 1}")
        for partition, shared in self._shared.items():
            for stint in shared.stints.values():
                self._check_overtaken(partition, stint)

    def _begins(self, shared: _Shared, event: Event) -> None:
        for other in shared.stints.values():
            other.overtaken_by = event["r"]
        shared.stints[event["r"]] = _Stint(event["r"], shared.stored)

    def _ends(self, shared: _Shared, event: Event) -> None:
        stint = shared.stints.pop(event["r"], None)
        if stint is not None and event["how"] != "lost":
            self._check_overtaken(event["p"], stint)

    def _check_overtaken(self, partition: int, stint: _Stint) -> None:
        if stint.overtaken_by:
            text = f"partition {partition}: {stint.member} and {stint.overtaken_by}"
            self._breach("shared", 1, text)

    def _got(self, shared: _Shared, event: Event) -> None:
        member, partition, offset = event["r"], event["p"], event["o"]
        end = offset + event["n"]
        where = f"partition {partition}: {member} got {offset} to {end - 1}"
        again = sum(hi - lo for lo, hi in shared.delivered.overlap(offset, end))
        self.delivered += event["n"]
        self.redelivered += again
        shared.delivered.add(offset, end)
        shared.reached = max(shared.reached, end)
        stint = shared.stints.get(member)
        if stint is None:
            self._breach("shared", event["n"], f"{where}, which it does not own")
            return
        if stint.position < 0 and offset < stint.floor:
            self._breach("repeated", stint.floor - offset, f"{where}; {stint.floor} was committed")
        if stint.position >= 0 and offset != stint.position:
            text = f"{where}, where {stint.position} was next"
            self._breach("passed over", abs(offset - stint.position), text)
        stint.position = end

    def _stored(self, shared: _Shared, event: Event) -> None:
        partition, offset = event["p"], event["o"]
        if offset < shared.stored:
            text = f"partition {partition}: from {shared.stored} to {offset}"
            self._breach("went back", shared.stored - offset, text)
        if "first" in event:
            shared.reached = offset  # where the group was told to start
        limit = shared.reached
        if offset > limit:
            text = f"partition {partition}: {offset} is committed, {limit} was reached"
            self._breach("ahead", offset - limit, text)
        shared.stored = offset
