"""What a cluster costs at rest: CPU and memory of a broker with no and with 1,000 partitions."""

import argparse
import time

from benchmarks.common import cpu_seconds, figure, local_cluster, progress, resident_bytes
from penstock.client import Admin
from penstock_broker.local import LocalCluster

BROKERS = (0, 1, 2)
TOPIC_PARTITIONS = 100


def shares_of_core(cluster: LocalCluster, seconds: float) -> list[float]:
    """Share of one core each broker uses, over `seconds`."""
    pids = [cluster.broker_pid(broker) or 0 for broker in BROKERS]
    before = [cpu_seconds(pid) for pid in pids]
    time.sleep(seconds)
    after = [cpu_seconds(pid) for pid in pids]
    return [(end - start) / seconds for start, end in zip(before, after, strict=True)]


def report(label: str, cluster: LocalCluster, seconds: float) -> None:
    worst = max(shares_of_core(cluster, seconds))
    memory = max(resident_bytes(cluster.broker_pid(broker) or 0) for broker in BROKERS) / 1e6
    figure(f"CPU of an idle broker, {label}", 100 * worst, "% of a core", "limit", 5.0)
    figure(f"resident memory of an idle broker, {label}", memory, "MB", "limit", 200.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    with local_cluster(len(BROKERS)) as cluster:
        time.sleep(3)
        report("no partitions", cluster, args.seconds)
        progress(f"creating {args.partitions} partitions")
        with Admin(cluster.bootstrap) as admin:
            for index in range(args.partitions // TOPIC_PARTITIONS):
                admin.create_topic(f"idle-{index}", TOPIC_PARTITIONS, 3)
        time.sleep(5)
        report(f"{args.partitions:,} partitions of 3 replicas", cluster, args.seconds)


if __name__ == "__main__":
    main()
