"""What happens to a group's partitions when members come, go, die or freeze, or its broker dies.

Records flow into every partition all the time. Who owns what, and when records came, the member
processes say (`group_members.py`); here is who is started, killed and frozen, and what counts.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Self

from benchmarks.common import figure, median, progress
from benchmarks.failover import await_condition
from benchmarks.group_members import MemberProcess
from penstock.client import Admin, GroupDescription, Producer
from penstock.errors import PenstockError
from penstock_broker.local import LocalCluster

OFFSETS_TOPIC = "__consumer_offsets"
SESSION_TIMEOUT_MS = 6_000
SLICES = 20


class Feeder:
    """Sends a record to every partition of `topics` every `interval_s`, evenly spread over it."""

    def __init__(
        self, bootstrap: str, topics: Sequence[str], partitions: int, interval_s: float
    ) -> None:
        places = [(topic, number) for topic in topics for number in range(partitions)]
        self._slices = [places[first::SLICES] for first in range(min(SLICES, len(places)))]
        self._bootstrap = bootstrap
        self._pause_s = interval_s / len(self._slices)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with Producer(self._bootstrap) as producer:
            due = time.monotonic()
            while True:
                for places in self._slices:
                    for topic, number in places:
                        producer.send(topic, b"x" * 100, partition=number)
                    due = max(due + self._pause_s, time.monotonic() - 1.0)
                    if self._stop.wait(max(0.0, due - time.monotonic())):
                        return


class Group:
    """The member processes of one group that reads `partitions` partitions."""

    def __init__(
        self,
        bootstrap: str,
        name: str,
        topics: Sequence[str],
        partitions: int,
        session_timeout_ms: int = 45_000,
    ) -> None:
        self.name = name
        self.processes: list[MemberProcess] = []
        self._bootstrap = bootstrap
        self._topics = topics
        self._partitions = partitions
        self._session_timeout_ms = session_timeout_ms

    def add(self) -> MemberProcess:
        """A process without members yet."""
        made = MemberProcess(
            self._bootstrap,
            self.name,
            self._topics,
            session_timeout_ms=self._session_timeout_ms,
        )
        self.processes.append(made)
        return made

    def remove(self, process: MemberProcess) -> None:
        """kill -9 of what may be frozen or dead already."""
        process.kill()
        self.processes.remove(process)

    def owned(self) -> list[frozenset[str]]:
        """By member."""
        return [owned for process in self.processes for owned in list(process.owned.values())]

    def is_shared(self, members: int) -> bool:
        """Whether so many members own and read all partitions, and none more than its share."""
        owned = self.owned()
        low, high = self._partitions // members, -(-self._partitions // members)
        return (
            len(owned) == members
            and all(low <= len(each) <= high for each in owned)
            and len(frozenset().union(*owned)) == self._partitions == sum(map(len, owned))
            and len(self.reading()) == self._partitions
        )

    def await_shared(self, members: int) -> None:
        await_condition(f"a share for {members} members", lambda: self.is_shared(members))

    def reading(self) -> dict[str, float]:
        """By partition: when its first record came to its owner."""
        return {
            at: when for process in self.processes for at, when in list(process.reading.items())
        }

    def changed_at(self) -> float:
        """When a partition last changed hands."""
        return max(process.changed_at for process in self.processes)

    def longest_pause(self, begin: float, end: float) -> tuple[float, int]:
        """Of the partitions that did not move since `begin`; and how many those are."""
        answers = [each.ask("pauses", begin, end) for each in self.processes]
        return (
            max(answer["longest"] for answer in answers),
            sum(answer["partitions"] for answer in answers),
        )


@contextmanager
def group_of(group: Group) -> Iterator[Group]:
    """Ends its processes for certain."""
    try:
        yield group
    finally:
        for process in group.processes:
            process.kill()


# ------------------------------------------------------------ members come and go


def measure_rebalance(
    cluster: LocalCluster, topics: int, partitions: int, members: int, interval_s: float
) -> None:
    """A member joins `members - 1` others, then another leaves; `topics` of `partitions` each."""
    names = [f"moving-{number}" for number in range(topics)]
    with Admin(cluster.bootstrap) as admin:
        for name in names:
            admin.create_topic(name, partitions, 1)
    everything = topics * partitions
    size = f"{everything} partitions, {members} members"
    group = Group(cluster.bootstrap, "moving", names, everything)
    window_s = 6 * interval_s
    with (
        Feeder(cluster.bootstrap, names, partitions, interval_s),
        group_of(group),
    ):
        started = _start_members(group, members - 1)
        progress(f"{members - 1} members share {everything} partitions after {started:.1f} s")
        youngest = group.processes[-1]
        time.sleep(2 * interval_s)  # what the first polls found is read
        quiet, _ = _observe(group, lambda: None, window_s)

        def join() -> None:
            youngest.tell("start", 1)
            group.await_shared(members)
            youngest.await_done("start")

        joined, kept = _observe(group, join, window_s)
        took = group.changed_at() - youngest.joining_at
        _report("joins", size, took, joined, quiet)
        progress(f"a member joins: {everything - kept} of {everything} partitions moved")
        leaver = group.processes[0]

        def leave() -> None:
            leaver.ask("stop")
            group.await_shared(members - 1)

        left, kept = _observe(group, leave, window_s)
        took = group.changed_at() - leaver.leaving_at
        _report("leaves", size, took, left, quiet)
        progress(f"a member leaves: {everything - kept} of {everything} partitions moved")


def _start_members(group: Group, members: int) -> float:
    """In three processes; how many seconds from the first join to everyone's share."""
    each = max(1, members // 3)
    counts = [each, each, members - 2 * each] if members > 3 else [1] * members
    for process, count in [(group.add(), count) for count in counts]:
        process.tell("start", count)
    for process in group.processes:
        process.await_done("start")
    group.await_shared(members)
    return group.changed_at() - min(each.joining_at for each in group.processes)


def _observe(group: Group, act: Callable[[], None], window_s: float) -> tuple[float, int]:
    """The longest pause while `act` is done, in a window that is as long each time."""
    begin = time.monotonic()
    act()
    end = max(begin + window_s, time.monotonic())
    time.sleep(max(0.0, end + window_s / 3 - time.monotonic()))
    return group.longest_pause(begin, end)


def _report(what: str, size: str, took: float, pause: float, quiet: float) -> None:
    figure(f"until all have their share, a member {what}, {size}", took, "s", "limit", 5.0)
    figure(
        f"longest pause of a partition that did not move, a member {what}",
        pause,
        "s",
        "the same members, nobody comes or goes",
        quiet,
    )


# ------------------------------------------------------------ members and brokers die


def measure_deaths(cluster: LocalCluster, times: int) -> None:
    """Three members, one process each: kill -9, SIGSTOP, and kill -9 of their coordinator."""
    partitions, members = 12, 3
    with Admin(cluster.bootstrap, request_timeout_ms=2_000) as admin:
        admin.create_topic("dying", partitions, 3)
        group = Group(cluster.bootstrap, "dying", ["dying"], partitions, SESSION_TIMEOUT_MS)
        with Feeder(cluster.bootstrap, ["dying"], partitions, 0.05), group_of(group):
            _start_members(group, members)
            killed = []
            for turn in range(times):
                killed.append(_lose_member(group, MemberProcess.kill))
                progress(f"kill -9 of a member, {turn + 1} of {times}: {killed[-1]:.2f} s")
                group.add().ask("start", 1)
                group.await_shared(members)
            figure(
                "partitions of a killed member are read again, worst",
                max(killed),
                "s",
                "limit",
                2.0,
            )
            beyond = _lose_member(group, MemberProcess.freeze) - SESSION_TIMEOUT_MS / 1000
            figure(
                "partitions of a frozen member are read again, beyond its session timeout of "
                f"{SESSION_TIMEOUT_MS // 1000} s",
                beyond,
                "s",
                "limit",
                2.0,
            )
            group.add().ask("start", 1)
            group.await_shared(members)
            _measure_coordinator(cluster, admin, group, times)


def _lose_member(group: Group, how: Callable[[MemberProcess], None]) -> float:
    """Seconds until others read all that the first process owned."""
    victim = group.processes[0]
    lost = frozenset().union(*victim.owned.values())
    others = [each for each in group.processes if each is not victim]
    at = time.monotonic()
    how(victim)

    def first_records() -> list[float]:
        found = [
            when for each in others for where, when in list(each.reading.items()) if where in lost
        ]
        return [when for when in found if when > at]

    await_condition("reading what was lost", lambda: len(first_records()) == len(lost))
    took = max(first_records()) - at
    group.remove(victim)
    return took


def _measure_coordinator(cluster: LocalCluster, admin: Admin, group: Group, times: int) -> None:
    """Kills the broker of the group's coordinator, which comes back each time."""
    for process in group.processes:
        process.ask("commit")
    commits, streams = [], []
    for turn in range(times):
        await_condition("full replication", lambda: _is_whole(admin))
        time.sleep(1.0)  # of commits without trouble
        before = sorted(map(sorted, group.owned()))
        former = admin.describe_group(group.name).coordinator
        at = time.monotonic()
        cluster.kill(former, signal.SIGKILL)
        streams.append(_back(admin, group, former) - at)
        time.sleep(1.0)
        answers = [each.ask("commit_pauses", at, at + 1.0) for each in group.processes]
        commits.append(max(answer["longest"] for answer in answers))
        kept = "" if before == sorted(map(sorted, group.owned())) else ", and lost partitions"
        progress(
            f"kill -9 of the coordinator, {turn + 1} of {times}: commits {commits[-1]:.2f} s, "
            f"members {streams[-1]:.2f} s{kept}"
        )
        cluster.start_broker(former)
    figure(
        "commits succeed again after kill -9 of the coordinator, median",
        median(commits),
        "s",
        "limit",
        3.0,
    )
    figure(
        "commits succeed again after kill -9 of the coordinator, worst",
        max(commits),
        "s",
        "limit",
        3.0,
    )
    figure(
        "all members are back after kill -9 of the coordinator, worst",
        max(streams),
        "s",
        "limit",
        3.0,
    )


def _is_whole(admin: Admin) -> bool:
    found = admin.describe_topics([OFFSETS_TOPIC, "dying"])
    return all(len(each.isr) == 3 for topic in found.values() for each in topic.partitions)


def _back(admin: Admin, group: Group, former: int) -> float:
    """When another broker had a stream of every member."""
    seen: list[GroupDescription] = []

    def there() -> bool:
        with suppress(PenstockError):
            seen[:] = [admin.describe_group(group.name, include_offsets=False)]
        return bool(seen) and seen[0].coordinator != former and _all_connected(seen[0], group)

    await_condition("all members' return", there)
    return time.monotonic()


def _all_connected(seen: GroupDescription, group: Group) -> bool:
    return len(seen.members) == len(group.processes) and all(
        member.connected for member in seen.members
    )
