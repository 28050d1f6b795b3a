"""What producers notice while a broker that came back empty catches up.

Three brokers; one topic holds `--mib` of data, another is written with acks=all at half of the rate
that was the most. A probe writes one small record after the other to the second. Broker 2 is then
killed, loses its data and comes back; the figures are the probe's latency until it is in sync
again, over the latency before. Sets of partitions are the same in both, and so is the machine.
"""

import argparse
import shutil
import time
from collections.abc import Callable

from benchmarks.common import figure, local_cluster, median, percentile, progress
from benchmarks.load import LIVE, PARTITIONS, Load, Probe, top_rate
from penstock.client import Admin
from penstock_broker.local import LocalCluster

BACKLOG = "backlog"
RETURNING = 2
SETTLE_SECONDS = 600.0


def await_condition(what: str, condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + SETTLE_SECONDS
    while not condition():
        if time.monotonic() > limit:
            raise SystemExit(f"{what} did not happen within {SETTLE_SECONDS:.0f} s")
        time.sleep(0.1)


def in_sync(admin: Admin, broker: int, topics: list[str]) -> int:
    """In how many partitions it is."""
    found = admin.describe_topics(topics)
    return sum(broker in one.isr for topic in topics for one in found[topic].partitions)


def fill(cluster: LocalCluster, mib: int) -> None:
    load = Load(cluster.bootstrap, BACKLOG, None)
    await_condition("the backlog", lambda: load.acknowledged_bytes >= mib << 20)
    load.stop()


def catch_up(cluster: LocalCluster, admin: Admin) -> tuple[list[float], float]:
    """The probe's latencies while broker 2 catches up, and how long that took."""
    topics = [BACKLOG, LIVE]
    cluster.kill(RETURNING)
    await_condition("the process's end", lambda: cluster.broker_pid(RETURNING) is None)
    await_condition("its removal", lambda: in_sync(admin, RETURNING, topics) == 0)
    progress("broker 2 is out of all ISRs")
    shutil.rmtree(cluster.directory.root / f"broker-{RETURNING}")
    time.sleep(3)
    cluster.start_broker(RETURNING)
    progress("broker 2 is back, empty")
    probe, began = Probe(cluster.bootstrap), time.monotonic()
    whole = len(topics) * PARTITIONS
    await_condition("catching up", lambda: in_sync(admin, RETURNING, topics) == whole)
    took_s = time.monotonic() - began
    return probe.latencies_s(), took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1_024, help="of the backlog")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20, help="of the time without")
    parser.add_argument("--quick", action="store_true", help="only shows that it works")
    args = parser.parse_args()
    if args.quick:
        args.mib, args.rounds, args.seconds = 8, 1, 1
    ratios: dict[float, list[float]] = {0.5: [], 0.99: []}
    latencies: dict[float, list[tuple[float, float]]] = {0.5: [], 0.99: []}
    rates: list[float] = []
    with local_cluster(3) as cluster, Admin(cluster.bootstrap) as admin:
        for topic in (BACKLOG, LIVE):
            admin.create_topic(topic, PARTITIONS, 3)
        fill(cluster, args.mib)
        top = top_rate(cluster, 1 if args.quick else 8)
        progress(f"the most: {top / 1e6:.1f} MB/s")
        load = Load(cluster.bootstrap, LIVE, top / 2)
        try:
            for turn in range(args.rounds):
                time.sleep(5)
                probe = Probe(cluster.bootstrap)
                time.sleep(args.seconds)
                without = probe.latencies_s()
                beside, took_s = catch_up(cluster, admin)
                rates.append(args.mib / took_s)
                for share, found in ratios.items():
                    both = percentile(beside, share), percentile(without, share)
                    latencies[share].append(both)
                    found.append(both[0] / both[1])
                progress(f"{turn + 1}: {took_s:.1f} s, p99 ratio {ratios[0.99][-1]:.2f}")
        finally:
            load.stop()
    figure("rate that was the most, acks=all", top / 1e6, "MB/s")
    figure("catch-up, backlog over its time", median(rates), "MiB/s")
    for share, name, goal in ((0.5, "p50", ""), (0.99, "p99", "ratio ≤ 1.5")):
        beside_s, without_s = (median([pair[at] for pair in latencies[share]]) for at in (0, 1))
        figure(
            f"acks=all {name} at half of it, beside a catch-up",
            beside_s * 1e3,
            "ms",
            "without",
            without_s * 1e3,
            ratio=median(ratios[share]),
            goal=goal,
        )


if __name__ == "__main__":
    main()
