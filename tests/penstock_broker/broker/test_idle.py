"""Idle partitions cost nothing: no polling, no ticks, no messages."""

import psutil
from support.cluster import Cluster
from support.waiting import wait_until

PARTITIONS = 1_000


def test_a_thousand_idle_partitions_keep_nobody_busy(shared_cluster: Cluster) -> None:
    shared_cluster.create_topic("idle", partitions=PARTITIONS)
    shared_cluster.wait_in_sync("idle")
    processes = {
        broker_id: psutil.Process(broker.pid)
        for broker_id, broker in shared_cluster.brokers.items()
    }

    def is_quiet() -> bool:
        """Over one second of wall time, less than 5 % of a core each."""
        before = {broker_id: _cpu_s(process) for broker_id, process in processes.items()}
        psutil.cpu_percent(interval=1.0)  # polls: lets a second of wall time pass
        return all(
            _cpu_s(process) - before[broker_id] < 0.05 for broker_id, process in processes.items()
        )

    wait_until(is_quiet, what="brokers with 1,000 idle partitions use less than 5 % of a core")
    for broker_id, process in processes.items():
        resident = process.memory_info().rss
        assert resident < 200 * 2**20, f"broker {broker_id} holds {resident >> 20} MiB"


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
