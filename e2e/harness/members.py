"""Members of a consumer group as pods of a Deployment, and the diary of what they did.

    Members ──▶ Deployment: pods that run `member.py` ──▶ the diary, a topic ──▶ read_diary
                or `pipe.py` ──▶ what they made of it, exactly once ──▶ read_lines

`penstock verify run --group` has all members in its own process, and judges more; this is for
members that come and go as pods do. The image is the broker's, which has the client in it.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, Self

from e2e.harness.images import BROKER
from e2e.harness.kubectl import Manifest
from e2e.harness.penstock import Penstock
from e2e.harness.process import E2EError, wait_until
from e2e.harness.workload import client_pod

HERE: Final = Path(__file__).parent
GRACE_S: Final = 15

Event = dict[str, Any]
"""A line of the diary; `member.py` tells what they say."""


class Program(Protocol):
    """What runs in every pod."""

    @property
    def text(self) -> str:
        """In Python."""

    def arguments(self, bootstrap: str) -> list[str]:
        """On its command line."""


@dataclass(frozen=True, slots=True)
class Work:
    """What the members of one group do. Times in seconds, `each` members per pod; more is in
    `member.py`. `max_records` None: what there is."""

    topic: str
    group: str
    each: int = 1
    max_records: int | None = None
    max_poll_interval_s: float = 300.0
    pace_s: float = 0.0
    stall_s: float = 0.0
    stall_at: int = 0

    @property
    def text(self) -> str:
        return (HERE / "member.py").read_text()

    @property
    def diary(self) -> str:
        return f"{self.group}-diary"

    def arguments(self, bootstrap: str) -> list[str]:
        named = {
            "bootstrap": bootstrap, "topic": self.topic, "group": self.group,
            "diary": self.diary, "members": self.each,
            "max-poll-interval": self.max_poll_interval_s, "pace": self.pace_s,
            "stall": self.stall_s, "stall-at": self.stall_at,
        }  # fmt: skip
        if self.max_records is not None:
            named["max-records"] = self.max_records
        return [f"--{name}={value}" for name, value in named.items()]


@dataclass(frozen=True, slots=True)
class Pipe:
    """A loop from `topic` to `target`, as its `group`."""

    topic: str
    group: str
    target: str

    @property
    def text(self) -> str:
        return (HERE / "pipe.py").read_text()

    def arguments(self, bootstrap: str) -> list[str]:
        return [
            f"--bootstrap={bootstrap}", f"--topic={self.topic}",
            f"--group={self.group}", f"--target={self.target}",
        ]  # fmt: skip


class Members:
    """A Deployment of one pod at first. As a context manager: it is gone when the block ended."""

    def __init__(self, penstock: Penstock, name: str, program: Program) -> None:
        self._penstock = penstock
        self._program = program
        self.name = name
        self.selector = f"app.kubernetes.io/name={name}"

    def __enter__(self) -> Self:
        self._penstock.streams.apply(self._deployment())
        return self

    def __exit__(self, *_exc: object) -> None:
        self._penstock.streams.delete("deployment", self.name)
        wait_until(f"pods of {self.name} gone", lambda: not self.pods(), 60.0)

    def scale(self, pods: int) -> None:
        """Asks for so many; returns at once."""
        self._penstock.streams.call("scale", f"deployment/{self.name}", f"--replicas={pods}")

    def replicas(self) -> int:
        """How many pods are asked for now."""
        return int(self._penstock.streams.get("deployment", self.name)["spec"]["replicas"])

    def pods(self) -> list[Manifest]:
        """Also those that are about to end."""
        return self._penstock.streams.list("pod", self.selector)

    def said(self) -> list[Event]:
        """What pods that run have written into the diary lately, from their logs: that is
        cheaper than reading it."""
        kubectl = self._penstock.streams
        running = [pod for pod in self.pods() if pod["status"].get("phase") == "Running"]
        logs = [kubectl.logs(pod["metadata"]["name"]) for pod in running]
        lines = [line.partition("] ")[2] for log in logs for line in log.splitlines()]
        return [json.loads(line) for line in lines if line.startswith("{")]

    def _deployment(self) -> Manifest:
        labels = {"app.kubernetes.io/name": self.name}
        command = ["python", "-c", self._program.text]
        command += self._program.arguments(self._penstock.bootstrap)
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": self.name, "labels": labels},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "terminationGracePeriodSeconds": GRACE_S,
                        **client_pod("member", BROKER.tag, command, self._penstock.login),
                    },
                },
            },
        }


def describe_group(penstock: Penstock, group: str) -> dict[str, Any]:
    """As `penstock group describe` tells it."""
    seen: dict[str, Any] = json.loads(penstock.cli("group", "describe", group, "-o", "json"))
    return seen


def read_diary(penstock: Penstock, work: Work) -> list[Event]:
    """All that was written into it until now, oldest first."""
    return read_lines(penstock, work.diary)


def read_lines(penstock: Penstock, topic: str) -> list[Event]:
    """Of a topic, what has been committed; lines of one partition are in order."""
    said = penstock.cli("consume", topic, "-o", "beginning", "-e")
    return [json.loads(line) for line in said.splitlines()]


def judge_read(penstock: Penstock, work: Work, events: Iterable[Event]) -> int:
    """How many records were worked on more than once; raises E2EError if one never was.

    Compared with what is in the topic now, which nobody may be writing to.
    """
    rows = json.loads(penstock.cli("offsets", work.topic, "-o", "json"))
    logged = {row["partition"]: (row["earliest"], row["latest"]) for row in rows}
    got = [event for event in events if event["e"] == "got"]
    unread = missing(logged, got)
    if unread:
        raise E2EError(f"{work.topic}: the group {work.group} never read {', '.join(unread)}")
    in_log = sum(latest - earliest for earliest, latest in logged.values())
    worked_on = sum(event["hi"] - event["lo"] for event in got)
    return int(worked_on - in_log)


def missing(logged: Mapping[int, tuple[int, int]], got: Iterable[Event]) -> list[str]:
    """Offsets in the log (half-open, per partition) that are in no `got`, in words."""
    ranges = sorted((event["p"], event["lo"], event["hi"]) for event in got)
    found = []
    for partition, (earliest, latest) in sorted(logged.items()):
        reached = earliest
        for at, lo, hi in ranges:
            if at != partition:
                continue
            if lo > reached:
                found.append(f"partition {partition}: {reached} to {lo - 1}")
            reached = max(reached, hi)
        if reached < latest:
            found.append(f"partition {partition}: {reached} to {latest - 1}")
    return found
