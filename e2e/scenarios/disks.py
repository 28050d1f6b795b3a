"""Fewer brokers, whose disks are too small for what all of them have: refused, with numbers."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from e2e.harness.disks import own_disks
from e2e.harness.penstock import CLUSTERS, condition
from e2e.harness.plugin import why
from e2e.harness.process import wait_until
from e2e.harness.scenario import Stage, scenario
from e2e.scenarios.resources import cluster

TIGHT: Final = "tight"
DISK_MIB: Final = 640
"""Up to 472 MiB of it are planned with: 64 MiB, below which writes stop, stay free twice."""
FILLED_MIB: Final = 240
"""Each of two topics of two replicas: three brokers have 320 MiB, and two would have 480."""
RECORD_BYTES: Final = 10_000
READY_S: Final = 240.0
SAID_S: Final = 90.0
DRAINED_S: Final = 300.0
REFUSAL: Final = re.compile(
    r"scaling down to 2 is blocked: broker (?P<broker>\d) would hold (?P<held>[\d.]+ [GM]iB) of "
    r"(?P<disk>[\d.]+ [GM]iB), and (?P<limit>[\d.]+ [GM]iB) is the limit.*; "
    r"needs 1 more broker, or volumes of \d+Gi; or set spec\.brokers to 3$"
)


@scenario("A scale-down that the other disks are too small for is refused, until it fits")
def scaled_down_to_small_disks(stage: Stage) -> None:
    """Nothing moves, and the numbers are those of the disks. A topic is deleted: it goes on."""
    with _tight(stage) as small, small.workload(small.load(rate=100, replicas=2)) as running:
        running.started()
        with small.topic("-kept", partitions=6, replicas=2) as kept:
            with small.topic("-much", partitions=6, replicas=2) as much:
                for topic in (kept, much):
                    _fill(small, topic)
                before = {topic: _placed(small, topic) for topic in (kept, much)}
                _scale_to_two(small)
                _expect_numbers(small, _refused(small))
                _expect_shown(small)
                running.goes_on()
                after = {topic: _placed(small, topic) for topic in before}
                stage.expect(after == before, f"replicas moved: {before}, then {after}")
                _expect_untouched(small)
            began = time.monotonic()
            wait_until("two brokers", lambda: len(small.penstock.broker_pods()) == 2, DRAINED_S)
            small.penstock.wait_settled(READY_S)
            stage.measure("two brokers, once it fits", time.monotonic() - began)
            on = {broker for replicas in _placed(small, kept) for broker in replicas}
            stage.expect(on == {0, 1}, f"{kept} is on brokers {sorted(on)}")
            running.goes_on()


@contextmanager
def _tight(stage: Stage) -> Iterator[Stage]:
    """A Cluster of three brokers, each of which has a disk of DISK_MIB."""
    streams = stage.penstock.streams
    small = replace(stage, penstock=stage.penstock.other(TIGHT))
    settings = {"default.replication.factor": 2, "min.insync.replicas": 1}
    volume = {"size": f"{DISK_MIB}Mi", "storageClassName": TIGHT}
    wanted = cluster(
        TIGHT, storage=volume, config=settings, deletionPolicy="Delete", **small.penstock.security
    )
    with own_disks(stage.nodes, stage.kubectl, TIGHT, DISK_MIB):
        try:
            streams.apply(wanted)
            small.penstock.wait_settled(READY_S)
            yield small
        finally:
            small.penstock.end_tool()
            streams.delete(CLUSTERS, TIGHT, wait_s=120.0)
            _without_claims(stage)


def _without_claims(stage: Stage) -> None:
    streams, claims = stage.penstock.streams, f"penstock.dev/cluster={TIGHT}"
    wait_until("its claims are gone", lambda: not streams.list("pvc", claims), 120.0)


def _fill(small: Stage, topic: str) -> None:
    small.penstock.exec(
        "penstock", "perf", "produce", topic, f"--records={(FILLED_MIB << 20) // RECORD_BYTES}",
        f"--record-bytes={RECORD_BYTES}", timeout_s=300.0,
    )  # fmt: skip
    small.penstock.wait_in_sync(topic)


def _scale_to_two(small: Stage) -> None:
    small.penstock.streams.call("scale", f"{CLUSTERS}/{TIGHT}", "--replicas=2")


def _placed(small: Stage, topic: str) -> list[list[int]]:
    """The brokers of each partition."""
    return [sorted(one.replicas) for one in small.penstock.partitions(topic)]


def _refused(small: Stage) -> re.Match[str]:
    """The parts of the message, once the Cluster says that it is blocked."""
    began = time.monotonic()
    found = small.penstock.streams.wait(
        CLUSTERS, TIGHT, lambda now: condition(now, "Stalled").get("reason") == "DrainBlocked",
        SAID_S,
    )  # fmt: skip
    small.measure("refused", time.monotonic() - began)
    message = str(condition(found, "Stalled")["message"])
    small.say(message)
    said = REFUSAL.fullmatch(message)
    small.expect(said, f"that does not say what would be enough: {message}")
    assert said is not None
    return said


def _expect_numbers(small: Stage, said: re.Match[str]) -> None:
    """What is said of the disk is what the disk says, and more would be on it than may be."""
    listed = small.penstock.streams.exec(
        small.penstock.pod(int(said["broker"])), "python", "-c",
        "import shutil; print(sum(shutil.disk_usage('/var/lib/penstock')[1:]))",
    )  # fmt: skip
    disk, held, limit = (_bytes(said[each]) for each in ("disk", "held", "limit"))
    small.expect(abs(disk - int(listed)) < 0.1 * disk, f"{disk} said, the disk has {listed} bytes")
    small.expect(limit < held and limit < disk, f"{held} bytes would not be too much of {limit}")


def _bytes(said: str) -> float:
    number, unit = said.split()
    return float(number) * {"MiB": 1 << 20, "GiB": 1 << 30}[unit]


def _expect_shown(small: Stage) -> None:
    """To whoever looks with kubectl, or asks why."""
    shown = small.penstock.streams.call("get", CLUSTERS, TIGHT, "-o", "wide").decode()
    small.say(shown.splitlines()[-1])
    told = "Blocked" in shown and "would hold" in shown
    small.expect(told, f"kubectl get does not say it: {shown}")
    asked = why(TIGHT)
    small.expect("would hold" in " ".join(asked.split()), f"why does not say it: {asked}")


def _expect_untouched(small: Stage) -> None:
    """No broker is cordoned, nothing moves, all three serve."""
    status = small.penstock.streams.get(CLUSTERS, TIGHT)["status"]
    rows = status.get("brokerStatuses", ())
    small.expect(not any("cordoned" in row for row in rows), f"a broker is cordoned: {rows}")
    small.expect(not status.get("moves", {}).get("running"), f"moves run: {status.get('moves')}")
    small.expect(small.penstock.ready_brokers() == 3, "three brokers serve")
