"""A recorded workload on a test's cluster: runs while the test does harm, then is judged.

    with Load(cluster, tmp_path / "history.jsonl", topic="t") as load:
        load.measure(); cluster.brokers[0].kill()
        load.wait_writing()                      every partition acknowledges again
        print(load.gap_ms())                     the longest silence of a partition since measure()
        verdict = load.judge()

The topic has replication factor 3 and min.insync.replicas 2 unless told otherwise.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from support.cluster import Cluster
from support.waiting import wait_until

from penstock.errors import ErrorCode
from penstock.verify.check import check_files
from penstock.verify.history import Event, HistoryWriter
from penstock.verify.report import summary, verdict_lines
from penstock.verify.verdict import Verdict
from penstock.verify.workload import Workload
from penstock.verify.workload_config import SilentProgress, WorkloadConfig

DEFAULTS: dict[str, Any] = {
    "partitions": 6,
    "replication_factor": 3,
    "producers": 2,
    "consumers": 1,
    "keys": 6,
    "rate": 3_000,
    "batch_records": 20,
    "settle_s": 40.0,
    "delivery_timeout_ms": 60_000,
    "topic_configs": {"min.insync.replicas": "2", "retention.ms": "-1"},
}
ACKS_THAT_SHOW_A_FLOW = 5


class AckWatch(HistoryWriter):
    """Writes the history, and counts and times each partition's acknowledgements; how far it is
    acknowledged, and read by somebody live."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._watch = threading.Lock()
        self.acks: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self.read_to: dict[int, int] = {}
        self.failures: Counter[str] = Counter()
        self.longest_s: dict[int, float] = {}
        self._last_s: dict[int, float] = {}

    def write(self, event: Event) -> None:
        super().write(event)
        if event["e"] == "ack":
            with self._watch:
                partition, now_s = event["p"], time.monotonic()
                silence_s = now_s - self._last_s.get(partition, now_s)
                self.longest_s[partition] = max(self.longest_s.get(partition, 0.0), silence_s)
                self._last_s[partition] = now_s
                self.acks[partition] = self.acks.get(partition, 0) + 1
                self.ends[partition] = event["o"] + event["n"]
        elif event["e"] == "fail":
            with self._watch:
                self.failures[event["why"]] += 1
        elif event["e"] == "read":
            self.read_to[event["p"]] = event["o"] + event["n"]

    def reset(self) -> None:
        with self._watch:
            self.longest_s.clear()

    def counts(self) -> dict[int, int]:
        with self._watch:
            return dict(self.acks)


class ReadCount(SilentProgress):
    """How many records live readers have seen."""

    def __init__(self) -> None:
        self.records = 0

    def read(self, records: int) -> None:
        self.records += records  # one reader at a time is exact enough: only growth is looked at


class Load:
    """Keyword arguments are fields of WorkloadConfig."""

    def __init__(self, cluster: Cluster, history: Path, *, topic: str, **options: Any) -> None:
        self.config = WorkloadConfig(
            topic=topic, **{"bootstrap": cluster.bootstrap, **DEFAULTS, **options}
        )
        self.history = history
        self.watch = AckWatch(history)
        self._reads = ReadCount()
        self._workload = Workload(self.config, self.watch, self._reads)
        self._running = False

    def __enter__(self) -> Self:
        self._workload.start()
        self._running = True
        self.wait_writing()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
        self.watch.close()

    def stop(self) -> None:
        """Settles everything and reads it back."""
        if self._running:
            self._running = False
            self._workload.stop()

    def wait_writing(self, timeout_s: float = 40.0) -> None:
        """Until every partition has acknowledged some batches from now on."""
        before = self.watch.counts()

        def silent() -> list[int]:
            now = self.watch.counts()
            return [
                partition
                for partition in range(self.config.partitions)
                if now.get(partition, 0) < before.get(partition, 0) + ACKS_THAT_SHOW_A_FLOW
            ]

        wait_until(
            lambda: not silent(),
            what=f"all partitions of {self.config.topic} acknowledge records",
            timeout_s=timeout_s,
        )

    def wait_some_acks(self, timeout_s: float = 40.0) -> None:
        """Until any partition has acknowledged some batches from now on."""
        enough = sum(self.watch.counts().values()) + ACKS_THAT_SHOW_A_FLOW
        wait_until(
            lambda: sum(self.watch.counts().values()) >= enough,
            what=f"{self.config.topic} acknowledges records",
            timeout_s=timeout_s,
        )

    def wait_read(self) -> None:
        """Until the live reader has got what is acknowledged by now."""
        ends = dict(self.watch.ends)
        read = self.watch.read_to
        wait_until(
            lambda: all(read.get(partition, 0) >= end for partition, end in ends.items()),
            what=f"what is acknowledged of {self.config.topic} is read",
        )

    @property
    def tag(self) -> int:
        """Of the workload: see there."""
        return self._workload.tag

    @property
    def records_read(self) -> int:
        """By live readers, so far."""
        return self._reads.records

    def failed_because(self, code: ErrorCode) -> int:
        """Deliveries that failed definitely with this code, so far."""
        return self.watch.failures[code.name]

    def measure(self) -> None:
        """Begins to measure silence again."""
        self.watch.reset()

    def gap_ms(self) -> int:
        """The longest time a partition went without an acknowledgement since `measure`."""
        return round(max(self.watch.longest_s.values(), default=0.0) * 1000)

    def judge(self) -> Verdict:
        """Ends the workload; the verdict, its figures printed."""
        self.stop()
        verdict = check_files([self.history])
        print("; ".join(f"{label}: {text}" for label, text in summary(verdict)))
        print("\n".join(verdict_lines(verdict)))
        return verdict


def assert_nothing_noticed(verdict: Verdict) -> None:
    """PASS, and every single record was acknowledged: the application saw a pause at most."""
    assert verdict.passed, verdict.to_dict()
    assert verdict.sent > 0
    assert verdict.read > 0
    assert (verdict.failed, verdict.unknown) == (0, 0), verdict.to_dict()
    assert verdict.acknowledged == verdict.sent == verdict.final


def assert_whole(verdict: Verdict) -> None:
    """PASS of a load with transactions: some were committed, some aborted, all were decided."""
    assert verdict.passed, verdict.to_dict()
    assert verdict.committed > 0
    assert verdict.aborted > 0
    assert verdict.undecided == 0, "the producers had time to learn every outcome"
    assert verdict.read > 0


MakeLoad = Callable[..., Load]
"""What the fixture `make_load` gives: options of Load to a Load."""
