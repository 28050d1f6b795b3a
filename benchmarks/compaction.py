"""What compaction costs those who produce meanwhile, and how fast it goes.

A broker holds a topic of many versions of each key that may not be compacted yet. A producer
writes to another topic: one small record after the other (latency), then as much as goes
(throughput). Then the first topic may be compacted and the same is measured while that runs:
the peer of each figure is the same measurement without compaction, in the same run. No limit of
bytes per second, so that the broker's own restraint is what is seen.
"""

import argparse
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.common import figure, median, percentile, progress
from penstock.client import Acks, Admin, Producer
from penstock_broker.local import LocalCluster

MANIFEST = """
apiVersion: penstock.dev/v1alpha1
kind: Cluster
metadata: {name: bench}
spec:
  brokers: 1
  config:
    log.cleaner.backoff.ms: 200
    log.cleaner.io.max.bytes.per.second: 1073741824
"""
DIRTY = "dirty"
LOAD = "load"
RECORDS_PER_BATCH = 2_000
VALUE_BYTES = 200
NEVER = str(10**15)


def fill(bootstrap: str, megabytes: int, keys: int) -> None:
    """Writes `megabytes` of versions of `keys` keys, in batches of some 100 KiB."""
    values = [b"v" * VALUE_BYTES] * RECORDS_PER_BATCH
    with Producer(bootstrap) as producer:
        for number in range(megabytes * 1_000_000 // (VALUE_BYTES * RECORDS_PER_BATCH)):
            first = number * RECORDS_PER_BATCH
            names = [b"%d" % ((first + index) % keys) for index in range(RECORDS_PER_BATCH)]
            producer.send_columns(DIRTY, values, names).result(60)


def latencies(producer: Producer, seconds: float) -> list[float]:
    """Of one acknowledged record after the other, in ms."""
    found = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        started = time.monotonic()
        producer.send(LOAD, b"x" * 100).result(60)
        found.append((time.monotonic() - started) * 1000)
    return found


def megabytes_per_second(producer: Producer, seconds: float) -> float:
    values = [b"x" * 1000] * 200
    sent, started = 0, time.monotonic()
    while time.monotonic() < started + seconds:
        producer.send_columns(LOAD, values)
        sent += len(values) * 1000
    producer.flush(60)
    return sent / 1e6 / (time.monotonic() - started)


class Shrinking(threading.Thread):
    """Watches the dirty topic until it stays as small as it can be."""

    def __init__(self, bootstrap: str, target_bytes: int) -> None:
        super().__init__(daemon=True)
        self._brokers = bootstrap
        self._target_bytes = target_bytes
        self.started = time.monotonic()
        self.took_s: float | None = None
        self.stopping = threading.Event()
        self.start()

    def run(self) -> None:
        with Admin(self._brokers) as admin:
            while not self.stopping.wait(0.1):
                if log_bytes(admin) <= self._target_bytes:
                    self.took_s = time.monotonic() - self.started
                    return


def log_bytes(admin: Admin) -> int:
    return sum(log.size_bytes for held in admin.describe_logs([DIRTY]) for log in held.logs)


def measure(cluster: LocalCluster, args: argparse.Namespace) -> None:
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap, acks=Acks.ALL) as producer:
        configs = {"cleanup.policy": "compact", "min.compaction.lag.ms": NEVER}
        admin.create_topic(DIRTY, 1, 1, configs)
        admin.create_topic(LOAD, 1, 1)
        progress(f"writing {args.megabytes} MB")
        fill(cluster.bootstrap, args.megabytes, args.keys)
        before_bytes = log_bytes(admin)
        latencies(producer, 1)
        progress("producing without compaction")
        alone = latencies(producer, args.seconds)
        alone_rate = megabytes_per_second(producer, args.seconds)
        progress("producing beside compaction")
        shrinking = Shrinking(cluster.bootstrap, 2 * args.keys * (VALUE_BYTES + 30))
        admin.alter_configs(DIRTY, {"min.compaction.lag.ms": "0"})
        beside = latencies(producer, args.seconds)
        rate = megabytes_per_second(producer, args.seconds)
        still_running = shrinking.took_s is None
        shrinking.join(60)
        shrinking.stopping.set()
        if not still_running:
            progress("compaction was done before the measurement: take more --megabytes")
        for name, share in (("median", 0.5), ("p99", 0.99)):
            one, two = percentile(beside, share), percentile(alone, share)
            figure(f"produce latency beside compaction, {name}", one, "ms", "without", two)
        figure("produce latency beside compaction, worst", max(beside), "ms", "without", max(alone))
        figure("produce throughput beside compaction", rate, "MB/s", "without", alone_rate)
        if shrinking.took_s is not None:
            speed = before_bytes / 1e6 / shrinking.took_s
            figure("compaction beside a producer", speed, "MB/s of log")
            figure(
                "size after compaction", log_bytes(admin) / 1e6, "MB", "before", before_bytes / 1e6
            )
        progress(f"{len(alone)} and {len(beside)} latencies, median {median(beside):.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200, help="of the log to compact")
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch:
        manifest = Path(scratch) / "cluster.yaml"
        manifest.write_text(MANIFEST)
        cluster = LocalCluster.from_manifest(manifest, data_dir=Path(scratch) / "data")
        try:
            cluster.start()
            measure(cluster, args)
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()
