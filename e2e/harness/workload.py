"""`penstock verify run` as a pod inside the cluster: load, its recorded history, the verdict.

    start ──▶ pod: penstock verify run … --history /work/history.jsonl -o json > verdict.json
    started, acknowledged      looks into the growing history
    finish ──▶ SIGINT ends the writing early; everything is read back and judged in the pod
    ──▶ history and verdict are copied here, the pod is deleted

The pod runs beside the control plane, where no scenario kills nodes, and keeps its files until they
are collected. The image is the broker's, which has the `penstock` command.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from e2e.harness.kubectl import Kubectl, Manifest
from e2e.harness.login import Login
from e2e.harness.nodes import CONTROL_PLANE_LABEL
from e2e.harness.process import E2EError, last_line, wait_until

HOURS_S = 3600.0
LOAD_LABELS = {"app.kubernetes.io/name": "penstock-verify"}

# The first process notes the workload's number and how it ended, and keeps the files.
SCRIPT = """\
cd /work
penstock verify run "$@" --history history.jsonl --output json >verdict.json 2>said &
echo $! >pid
wait $!
echo $? >ended.part && mv ended.part ended
until [ -e collected ]; do sleep 0.2; done
"""


@dataclass(frozen=True, slots=True)
class Load:
    """What is put on the cluster. `duration_s` None writes until `finish`. `rate` records/s.

    `group`: a consumer group of so many `members` reads as well; empty: none does.
    `transactions`: written in transactions, a fifth of which are aborted; `bank`: the same, and
    each is a transfer between two accounts.
    """

    bootstrap: str
    topic: str
    duration_s: float | None = None
    rate: int = 2_000
    partitions: int = 6
    replicas: int = 3
    producers: int = 2
    consumers: int = 1
    acks: str = "all"
    sync: str = "os"
    group: str = ""
    members: int = 3
    transactions: bool = False
    bank: bool = False

    def arguments(self) -> list[str]:
        """Of `penstock verify run`."""
        named = {
            "bootstrap": self.bootstrap, "topic": self.topic, "rate": self.rate,
            "duration": self.duration_s or HOURS_S, "partitions": self.partitions,
            "replicas": self.replicas, "producers": self.producers,
            "consumers": self.consumers, "acks": self.acks, "sync": self.sync,
        }  # fmt: skip
        if self.group:
            named |= {"group": self.group, "members": self.members}
        switches = {"--transactions": self.transactions, "--bank": self.bank}
        chosen = [name for name, on in switches.items() if on]
        return [f"--{name}={value}" for name, value in named.items()] + chosen


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the judge said; `figures` is all of its JSON. Gaps in seconds."""

    passed: bool
    acknowledged: int
    write_gap_s: float
    partition_write_gap_s: float
    breaches: dict[str, int] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, figures: dict[str, Any]) -> Self:
        return cls(
            passed=figures["verdict"] == "PASS",
            acknowledged=figures["acknowledged"],
            write_gap_s=figures["write_gap_ms"] / 1000,
            partition_write_gap_s=figures["partition_write_gap_ms"] / 1000,
            breaches={rule: each["records"] for rule, each in figures["breaches"].items()},
            figures=figures,
        )

    def __str__(self) -> str:
        if self.passed:
            committed = self.figures.get("transactions_committed", 0)
            within = f" in {committed:,} transactions" if committed else ""
            return f"PASS, {self.acknowledged:,} acknowledged{within}"
        return "FAIL: " + ", ".join(f"{count} {rule}" for rule, count in self.breaches.items())


class Workload:
    """One run. Use it as a context manager: its pod is gone afterwards, however the block ended."""

    def __init__(
        self, kubectl: Kubectl, load: Load, image: str, keep: Path, login: Login | None = None
    ) -> None:
        """`login`: what its pod shows to a Strict Cluster."""
        self._kubectl = kubectl
        self._login = login
        self._load = load
        self._image = image
        self._keep = keep
        self.name = f"verify-{load.topic}"[:63].rstrip("-")
        self.verdict: Verdict | None = None

    @property
    def topic(self) -> str:
        return self._load.topic

    @property
    def history(self) -> Path:
        """Where it is kept, once the run has been judged."""
        return self._keep / f"{self.name}.history.gz"

    def __enter__(self) -> Self:
        self._kubectl.delete("pod", self.name, now=True)
        self._kubectl.apply(self._pod())
        return self

    def __exit__(self, *_exc: object) -> None:
        self._kubectl.delete("pod", self.name, now=True, wait_s=None)

    def started(self, deadline_s: float = 90.0) -> None:
        """Waits until records are being acknowledged."""
        wait_until(f"{self.name} acknowledged", self._under_way, deadline_s)

    def acknowledged(self) -> int:
        """Batches acknowledged so far, give or take the last second."""
        return int(self._shell('grep -c \'"e":"ack"\' history.jsonl || true') or 0)

    def goes_on(self, batches: int = 50, deadline_s: float = 120.0) -> None:
        """Waits until that many more batches are acknowledged: the cluster takes writes (again)."""
        wanted = self.acknowledged() + batches
        wait_until(
            f"{self.name}: {batches} more batches acknowledged",
            lambda: self.acknowledged() >= wanted,
            deadline_s,
        )

    def transactional_ids(self) -> list[str]:
        """Of its producers, if they write in transactions."""
        begun = json.loads(self._shell("head -n 1 history.jsonl"))
        return [f"verify-{begun['run']:x}-{each}" for each in range(self._load.producers)]

    def finish(self, deadline_s: float = 180.0) -> Verdict:
        """Ends the writing, waits for the judge, and brings history and verdict here."""
        if not self._ended():
            self._shell("kill -INT $(cat pid)")
        wait_until(f"{self.name} judged", self._ended, deadline_s)
        self._collect()
        code, verdict = self._shell("cat ended").strip(), self._shell("cat verdict.json").strip()
        if not verdict:
            raise E2EError(f"{self.name}: exit {code}: {last_line(self._shell('cat said'))}")
        self.verdict = Verdict.parse(json.loads(verdict))
        self._shell("touch collected")
        return self.verdict

    def _under_way(self) -> bool:
        if self._ended():
            raise E2EError(f"{self.name} ended early: {last_line(self._shell('cat said'))}")
        return self.acknowledged() > 0

    def _ended(self) -> bool:
        return "yes" in self._shell("[ ! -e ended ] || echo yes")

    def _collect(self) -> None:
        self._keep.mkdir(parents=True, exist_ok=True)
        packed = self._kubectl.exec_bytes(
            self.name, "gzip", "-c", "/work/history.jsonl", timeout_s=120.0
        )
        self.history.write_bytes(packed)
        (self._keep / f"{self.name}.verdict.json").write_text(self._shell("cat verdict.json"))
        (self._keep / f"{self.name}.said").write_text(self._shell("cat said"))

    def _shell(self, script: str) -> str:
        return self._kubectl.exec(self.name, "sh", "-c", f"cd /work && {{ {script}; }}")

    def _pod(self) -> Manifest:
        command = ["sh", "-c", SCRIPT, "verify", *self._load.arguments()]
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.name, "labels": LOAD_LABELS},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                **client_pod("verify", self._image, command, self._login),
            },
        }


def client_pod(
    name: str, image: str, command: Sequence[str], login: Login | None = None
) -> Manifest:
    """The greater part of a pod's spec: one container, beside the control plane, which may write
    into /work and /tmp."""
    spec: Manifest = {
        "automountServiceAccountToken": False,
        "nodeSelector": {CONTROL_PLANE_LABEL: ""},
        "tolerations": [{"key": CONTROL_PLANE_LABEL, "operator": "Exists"}],
        "securityContext": {
            "runAsNonRoot": True,
            "fsGroup": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": name,
                "image": image,
                "imagePullPolicy": "Never",
                "command": [*command],
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [
                    {"name": "work", "mountPath": "/work"},
                    {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - in the pod
                ],
            }
        ],
        "volumes": [{"name": "work", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}],
    }
    if login is not None:
        login.add_to(spec)
    return spec
