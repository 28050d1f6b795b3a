"""Records what the processes of real clusters export before and while a fault is there.

    PYTHONPATH=tests python -m support.fault_recordings [FAULT …]

Each fault is made in a cluster of its own; all its processes are scraped once a second, first in
health, then with the fault. `recorded/<fault>.json` keeps the series that alerts read: nothing in
it is made by hand. Needs a minute per fault; `alert_rules` reads it.
"""

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Final
from urllib.error import URLError
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families
from support.background import Background
from support.cluster import Cluster
from support.waiting import wait_until

from penstock.client import Acks, Consumer, Producer
from penstock.errors import PenstockError

TESTS: Final = Path(__file__).resolve().parents[1]
RECORDED: Final = TESTS / "monitoring" / "recorded"
RULES: Final = TESTS.parent / "charts" / "penstock" / "files" / "monitoring" / "alerts.yaml"
HEALTHY_S: Final = 6
FAULTY_S: Final = 40
"""Groups are looked at once in 15 s."""
Series = dict[str, list[float | None]]
"""By name with labels, as PromQL writes it; None: the process did not answer."""


def watched() -> frozenset[str]:
    """The names of the series that alerts read."""
    return frozenset(re.findall(r"\b(?:penstock|process)_\w+", RULES.read_text()))


class Recorder:
    """Scrapes a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._ports = {
            **{f"broker-{id_}": port for id_, port in cluster.metrics_ports.items()},
            "controller-0": cluster.controller_metrics_port,
        }
        self._names = watched()
        self.series: Series = {}
        self.scrapes = 0

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            due = time.monotonic() + 1
            for instance, port in self._ports.items():
                self._scrape(instance, port)
            self.scrapes += 1
            for values in self.series.values():
                values.extend([None] * (self.scrapes - len(values)))
            Event().wait(max(0.0, due - time.monotonic()))

    def _scrape(self, instance: str, port: int) -> None:
        try:
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                text = answer.read().decode()
        except (URLError, ConnectionError):
            return
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in self._names:
                    name = series_name(sample.name, {**sample.labels, "instance": instance})
                    values = self.series.setdefault(name, [None] * self.scrapes)
                    values.append(sample.value)


def series_name(name: str, labels: dict[str, str]) -> str:
    """With the labels that the chart's PodMonitors add."""
    every = {"namespace": "streams", "cluster": "flights", **labels}
    shown = ",".join(f'{key}="{value}"' for key, value in sorted(every.items()))
    return f"{name}{{{shown}}}"


class Load(Background):
    """Produces a record every 50 ms, whatever comes back."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._bootstrap = cluster.bootstrap

    def _run(self) -> None:
        while not self._stop.is_set():
            with Producer(self._bootstrap, acks=Acks.ALL, delivery_timeout_ms=2_000) as producer:
                while not self._stop.wait(0.05):
                    try:
                        producer.send("flights", b"value").result(5)
                    except (PenstockError, TimeoutError):
                        break


def broker_killed(cluster: Cluster) -> None:
    """Broker 2 of three, which alone has the topic `alone`."""
    cluster.brokers[2].kill()


def two_brokers_killed(cluster: Cluster) -> None:
    """Of three, with min.insync.replicas 2 and a producer that needs them."""
    cluster.brokers[1].kill()
    cluster.brokers[2].kill()


def controller_killed(cluster: Cluster) -> None:
    """The only one."""
    cluster.controller.kill()


def unclean_election(cluster: Cluster) -> None:
    """Broker 1 falls behind, the leader dies, and broker 1 has to lead without all records."""
    cluster.brokers[1].kill()
    wait_until(
        lambda: list(cluster.partition("lossy", 0).isr) == [0], what="broker 1 is out of the ISR"
    )
    with Producer(cluster.bootstrap) as producer:
        producer.send("lossy", b"value").result(30)
    cluster.brokers[0].kill()
    cluster.brokers[1].start()


def consumer_stopped(cluster: Cluster) -> None:
    """A group has committed once, and commits nothing any more."""
    with Consumer(cluster.bootstrap, group_id="readers", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["flights"])
        while not consumer.poll(1.0):
            pass
        consumer.commit()


FAULTS: Final[dict[str, Callable[[Cluster], None]]] = {
    "broker-killed": broker_killed,
    "two-brokers-killed": two_brokers_killed,
    "controller-killed": controller_killed,
    "unclean-election": unclean_election,
    "consumer-stopped": consumer_stopped,
}


def record(fault: str) -> None:
    """Writes one file."""
    with TemporaryDirectory() as folder, Cluster(Path(folder), brokers=3) as cluster:
        cluster.create_topic("flights", replication_factor=3, configs={"min.insync.replicas": "2"})
        cluster.create_topic("alone", assignment=[[2]])
        configs = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
        cluster.create_topic("lossy", assignment=[[0, 1]], configs=configs)
        recorder = Recorder(cluster)
        with Load(cluster):
            recorder.run(HEALTHY_S)
            FAULTS[fault](cluster)
            recorder.run(FAULTY_S)
    lines = (
        f"{json.dumps(name)}: {json.dumps(recorder.series[name])}"
        for name in sorted(recorder.series)
    )
    RECORDED.mkdir(exist_ok=True)
    (RECORDED / f"{fault}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or FAULTS:
        record(chosen)
