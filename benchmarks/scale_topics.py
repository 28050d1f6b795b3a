"""Part of `scale.py`: what thousands of Topics cost the operator, with a real API server, a real
operator and three real brokers.

Needs etcd and kube-apiserver (see tests/support/apiserver.py). Topics have one partition: what is
measured is the operator, not the brokers.
"""

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from benchmarks.at_rest import CLUSTER, SETTLE_S, Stage, settle, staged
from benchmarks.common import cpu_seconds, figure, progress, resident_bytes
from penstock.kubernetes.names import API_VERSION

sys.path.append(str(Path(__file__).parent.parent / "tests"))

from support.operator_process import condition
from support.waiting import wait_until

MIB = 1 << 20
READY_S = 3_600.0
LOOK_S = 5.0
REST_S = 60.0
QUIET_S = 20.0
REST_SHARE = 0.05
"""Of a core, when nothing happens."""
MEMORY_MIB = 512
"""Of an operator's pod."""


class Topics(Stage):
    """At rest, with a Topic and a ConsumerGroup; then with many Topics."""

    def make_topics(self, count: int) -> None:
        """In some requests at a time, as kubectl would in the end."""
        kind = {"apiVersion": API_VERSION, "kind": "Topic"}
        spec = {"cluster": CLUSTER, "partitions": 1, "replicas": 3}

        def make(number: int) -> None:
            body = {**kind, "metadata": {"name": f"many-{number:05}"}, "spec": spec}
            self.server.request("POST", f"{self._folder}/topics", body)

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(make, range(count)))

    def ready_topics(self) -> int:
        """How many are Ready."""
        return sum(condition(one, "Ready").get("status") == "True" for one in self._topics())

    def _topics(self) -> Iterator[dict[str, object]]:
        more = ""
        while True:
            page = self.server.request("GET", f"{self._folder}/topics?limit=500{more}")
            yield from page["items"]
            if not (following := page["metadata"].get("continue")):
                return
            more = f"&continue={following}"


def measure(count: int) -> None:
    """Made, then at rest. Raises SystemExit without an API server."""
    with ExitStack() as stack:
        stage = staged(stack, Topics)
        wait_until(stage.is_settled, what="everything is Ready", timeout_s=SETTLE_S)
        pid = stage.operator.pid
        _at_rest(stage, pid, 1)
        used, began = cpu_seconds(pid), time.monotonic()
        stage.make_topics(count)
        while (ready := stage.ready_topics()) < count:
            progress(f"{ready:,} of {count:,} Topics are Ready")
            if time.monotonic() - began > READY_S:
                raise SystemExit(f"only {ready:,} of {count:,} Topics became Ready")
            time.sleep(LOOK_S)
        took_s, used = time.monotonic() - began, cpu_seconds(pid) - used
        title = f"{count:,} Topics"
        figure(f"operator: {title} made, until all are Ready", took_s, "s")
        figure(f"operator: per Topic, of {title}", 1_000 * used / count, "ms of a core")
        _at_rest(stage, pid, count)


def _at_rest(stage: Topics, pid: int, count: int) -> None:
    wait_until(stage.is_settled, what="nothing is left to do", timeout_s=SETTLE_S)
    settle(stage, QUIET_S)
    title = f"operator with {count:,} Topic{'s' if count > 1 else ''}"
    memory = resident_bytes(pid) / MIB
    figure(f"{title}: memory", memory, "MiB", "limit", MEMORY_MIB, goal="ratio at most 1")
    writes, used, began = stage.writes(), cpu_seconds(pid), time.monotonic()
    time.sleep(REST_S)
    share = (cpu_seconds(pid) - used) / (time.monotonic() - began)
    figure(f"{title}: at rest", share, "cores", "limit", REST_SHARE, goal="ratio at most 1")
    figure(f"{title}: writes at rest", (stage.writes() - writes).total(), "", goal="0")
