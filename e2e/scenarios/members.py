"""Members that come and go as pods, that are too slow, and that are scaled by what is to be read.

The members are those of `harness/members.py`: what they worked on stands in a diary, which is
compared with the log at the end. The load's own verdict says that the log has all there should be.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from e2e.harness.members import (
    Event,
    Members,
    Work,
    describe_group,
    judge_read,
    read_diary,
)
from e2e.harness.penstock import condition
from e2e.harness.process import wait_until
from e2e.harness.scenario import Stage, scenario
from e2e.scenarios.groups import GROUPS, group

MEMBERS_PER_POD = 3
MAX_POLL_S = 6.0
SLOW_S, STALL_S = 3.0, 20.0
STALL_AT = 4
TAKEN_LATEST_S = MAX_POLL_S + 5.0
CLOCK_S = 1.0
"""Between a member's last poll and the line that says so, on a crowded machine."""

PODS_MAX = 2
LAG_PER_POD = 200
FIRST_WORK_S = 25.0
"""Nothing is committed for so long: two looks of the operator."""
WINDOW_S = 50
LOOK_S = 10.0


@contextmanager
def diary(stage: Stage, work: Work) -> Iterator[None]:
    """The topic that members write into."""
    penstock = stage.penstock
    penstock.cli("topic", "create", work.diary, "--partitions=1", "--replicas=3")
    try:
        yield
    finally:
        penstock.cli("topic", "delete", work.diary, "--yes")


@contextmanager
def resource(stage: Stage, name: str, **spec: object) -> Iterator[None]:
    """A ConsumerGroup; the group is forgotten with it."""
    streams = stage.penstock.streams
    streams.apply(group(name, deletionPolicy="Delete", **spec))
    try:
        yield
    finally:
        streams.delete(GROUPS, name)


def status(stage: Stage, name: str) -> dict[str, Any]:
    """Of a ConsumerGroup; {} as long as it has none."""
    found: dict[str, Any] = stage.penstock.streams.get(GROUPS, name).get("status", {})
    return found


def wait_read(stage: Stage, work: Work, deadline_s: float = 90.0) -> list[Event]:
    """The diary, once the group has committed the end of every partition.

    Fails if a record is in no line of it.
    """
    penstock = stage.penstock
    wait_until(
        f"{work.group} has read everything",
        lambda: describe_group(penstock, work.group)["lag"] == 0,
        deadline_s,
    )
    events = read_diary(penstock, work)
    again = judge_read(penstock, work, events)
    stage.measure("records worked on more than once", again, "records")
    return events


@scenario("Three members become thirty, and three again, while records are written")
def members_scaled(stage: Stage) -> None:
    """No record is skipped; the figures say when the resource showed it (updated every 10 s)."""
    # Every partition has a key of some producer, so each of thirty members has something to do.
    load = stage.load(partitions=30, producers=4)
    work = Work(load.topic, "e2e-thirty", each=MEMBERS_PER_POD)
    with stage.workload(load) as running:
        running.started()
        with (
            diary(stage, work),
            resource(stage, work.group),
            Members(stage.penstock, work.group, work) as members,
        ):
            _wait_members(stage, work.group, MEMBERS_PER_POD)
            for pods in (10, 1):
                wanted, began = pods * MEMBERS_PER_POD, time.monotonic()
                members.scale(pods)
                _wait_members(stage, work.group, wanted)
                took = time.monotonic() - began
                stage.measure(f"until the resource said {wanted} members, Stable", took)
                running.goes_on(20)
            running.finish()
            events = wait_read(stage, work)
            owners = {event["r"] for event in events if event["e"] == "owns" and event["ps"]}
            stage.expect(len(owners) >= 30, f"only {len(owners)} members ever had a partition")


def _wait_members(stage: Stage, name: str, members: int) -> None:
    def says() -> bool:
        now = status(stage, name)
        return now.get("members") == members and now.get("state") == "Stable"

    wait_until(f"ConsumerGroup {name} says {members} members, Stable", says, 120.0)


@scenario("A member that exceeds max.poll.interval.ms loses its partitions")
def slow_member(stage: Stage) -> None:
    """Not before: work for half of the interval has no effect. Afterwards it joins again."""
    penstock, load = stage.penstock, stage.load(rate=600)
    work = Work(load.topic, "e2e-slow", each=2)
    slow = replace(
        work, each=1, max_poll_interval_s=MAX_POLL_S, pace_s=SLOW_S,
        stall_s=STALL_S, stall_at=STALL_AT,
    )  # fmt: skip
    with stage.workload(load) as running:
        running.started()
        with (
            diary(stage, work),
            resource(stage, work.group),
            Members(penstock, "e2e-quick-members", work),
            Members(penstock, "e2e-slow-member", slow) as late,
        ):
            wait_until("the slow member is back", lambda: _is_back(late.said()), 150.0)
            running.finish()
            events = wait_read(stage, work)
    first, last = _taken_s(stage, events)
    stage.expect(
        first >= MAX_POLL_S - CLOCK_S, f"counted dead after {first:.1f} s of {MAX_POLL_S} s"
    )
    stage.measure(
        f"until others had all that a member was {STALL_S:g} s busy with", last,
        limit=TAKEN_LATEST_S,
    )  # fmt: skip


def _stall(events: list[Event], kind: str) -> int | None:
    """Where the diary says that the slow member's long work begins (works) or ends (done)."""
    found = (at for at, each in enumerate(events) if each["e"] == kind and each["s"] == STALL_S)
    return next(found, None)


def _is_back(events: list[Event]) -> bool:
    """The slow member, whose events these are, has heard what it lost, and has partitions again."""
    done = _stall(events, "done")
    after = [] if done is None else events[done:]
    lost = [each for each in after if each["e"] == "leaves" and each["how"] == "lost"]
    owns = [each for each in after if each["e"] == "owns" and each["ps"]]
    return bool(lost and owns)


def _taken_s(stage: Stage, events: list[Event]) -> tuple[float, float]:
    """Seconds into the long work when others had the first and the last of its partitions.

    Fails unless they all were taken, and read on, before it ended; or if the slow member was cut
    off earlier, although it was in time then.
    """
    begins, ends = _stall(events, "works"), _stall(events, "done")
    assert begins is not None
    assert ends is not None
    name = events[begins]["r"]
    had: set[int] = set()
    for each in events[:begins]:
        if each["r"] == name and each["e"] in ("owns", "leaves"):
            stage.expect(each["how"] != "lost", f"{name} was cut off while it was in time: {each}")
            had = had | set(each["ps"]) if each["e"] == "owns" else had - set(each["ps"])
    stage.expect(had, f"{name} had no partitions when its long work began")
    others = [each for each in events[begins:ends] if each["r"] != name]
    taken: dict[int, float] = {}
    read: set[int] = set()
    for each in others:
        if each["e"] == "owns":
            for partition in had & set(each["ps"]):
                taken.setdefault(partition, each["t"] - events[begins]["t"])
        elif each["e"] == "got" and each["p"] in taken:
            read.add(each["p"])
    stage.expect(had == set(taken), f"nobody took over {sorted(had - set(taken))}")
    stage.expect(had == read, f"taken over, but not read on: {sorted(had - read)}")
    return min(taken.values()), max(taken.values())


@scenario("A Deployment is scaled by its group's lag, within bounds; not while the lag is unknown")
def deployment_scaled_by_lag(stage: Stage) -> None:
    """Up at once, down when fewer were enough for a while."""
    penstock = stage.penstock
    load = stage.load(partitions=3, rate=1_000)
    work = Work(load.topic, "e2e-pool", max_records=400, pace_s=1.0,
                stall_s=FIRST_WORK_S, stall_at=1)  # fmt: skip
    target = {"name": work.group, "maxReplicas": PODS_MAX, "lagPerReplica": LAG_PER_POD,
              "stabilizationWindowSeconds": WINDOW_S}  # fmt: skip
    with stage.workload(load) as running:
        running.started()
        running.goes_on(25)
        running.finish()
        with diary(stage, work), resource(stage, work.group, scaleTarget=target):
            _wait_refused(stage, work.group)
            penstock.install(stage.images, options=("--set", "consumerScaling.enabled=true"))
            try:
                with Members(penstock, work.group, work) as members:
                    _up_and_down(stage, work, members)
            finally:
                penstock.install(stage.images)


def _wait_refused(stage: Stage, name: str) -> None:
    """The chart gives the right to scale only when it is asked to."""

    def stalled() -> str:
        found = condition(stage.penstock.streams.get(GROUPS, name), "Stalled")
        return str(found["message"]) if found.get("reason") == "ScalingNotAllowed" else ""

    message = wait_until("the missing right is named", stalled, 60.0)
    stage.expect("consumerScaling.enabled=true" in message, f"it does not say how: {message}")


def _up_and_down(stage: Stage, work: Work, members: Members) -> None:
    wait_until("it pauses", lambda: _pauses(stage, work), 60.0)
    stage.expect(members.replicas() == 1, "it was scaled although nobody knows the lag")
    wait_until(f"{PODS_MAX} pods are asked for", lambda: members.replicas() == PODS_MAX, 120.0)
    asked = time.time_ns() / 1e9
    worked = next(each["t"] for each in read_diary(stage.penstock, work) if each["e"] == "done")
    stage.measure("until another pod was asked for, from the first commit on", asked - worked)
    wait_until("drained", lambda: status(stage, work.group).get("lag", {}).get("records") == 0,
               240.0)  # fmt: skip
    began = time.monotonic()
    stage.expect(members.replicas() == PODS_MAX, f"{members.replicas()} pods when it was drained")
    wait_until("one pod is enough", lambda: members.replicas() == 1, WINDOW_S + 6 * LOOK_S)
    took = time.monotonic() - began
    stage.measure("until the other pod was given up, from drained on", took)
    stage.expect(took > WINDOW_S - 4 * LOOK_S, "pods are started and stopped too eagerly")
    wait_read(stage, work)


def _pauses(stage: Stage, work: Work) -> bool:
    message = str(status(stage, work.group).get("scale", {}).get("message", ""))
    return "lag is unknown (no offset is committed" in message
