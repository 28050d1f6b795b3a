"""How long nothing can be written when a leader dies, and when leadership is moved on purpose.

A producer with acks=all writes one small record after the other to a partition with replication
3. Its leader is killed with -9 (`--kills` times; the broker comes back each time) or asked to
stop by SIGTERM (`--moves` times); the gap is the longest time between two acknowledgements.
The peer is Kafka with its defaults, killed once (its session timeout of 9 s decides).
"""

import argparse
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Producer as KafkaProducer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.common import figure, local_cluster, median, percentile, progress
from benchmarks.kafka_peer import Peer, available, kafka
from penstock.client import Acks, Admin, Producer
from penstock_broker.local import LocalCluster

TOPIC = "failover"
SETTLE_SECONDS = 60.0


class Pulse:
    """Writes a record every few ms and keeps the longest time between acknowledgements."""

    def __init__(self, bootstrap: str, settings: Mapping[str, Any]) -> None:
        self._bootstrap = bootstrap
        self._settings = settings
        self._stop = threading.Event()
        self._last = time.monotonic()
        self.longest_s = 0.0
        self.acknowledged = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def reset(self) -> None:
        self.longest_s = 0.0

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with Producer(self._bootstrap, acks=Acks.ALL, linger_ms=0, **self._settings) as producer:
            while not self._stop.wait(0.002):
                producer.send(TOPIC, b"x" * 100).result(60)
                now = time.monotonic()
                self.longest_s = max(self.longest_s, now - self._last)
                self._last = now
                self.acknowledged += 1


def await_condition(what: str, condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + SETTLE_SECONDS
    while not condition():
        if time.monotonic() > limit:
            raise SystemExit(f"{what} did not happen within {SETTLE_SECONDS:.0f} s")
        time.sleep(0.05)


def measure_gaps(cluster: LocalCluster, times: int, how: signal.Signals) -> list[float]:
    """The gap of each of `times` losses of the leader of `TOPIC`, which must be there."""
    gaps: list[float] = []
    settings: dict[str, Any] = dict(cluster.directory.client_files)
    with Admin(cluster.bootstrap, **settings) as admin:

        def whole() -> bool:
            return len(admin.describe_topics([TOPIC])[TOPIC].partitions[0].isr) == 3

        pulse = Pulse(cluster.bootstrap, settings)
        try:
            for turn in range(times):
                await_condition("full replication", whole)
                before = pulse.acknowledged
                await_condition("writing", lambda seen=before: pulse.acknowledged > seen + 50)  # type: ignore[misc]
                pulse.reset()
                leader = admin.describe_topics([TOPIC])[TOPIC].partitions[0].leader
                cluster.kill(leader, how)
                before = pulse.acknowledged
                await_condition("writing again", lambda seen=before: pulse.acknowledged > seen + 50)  # type: ignore[misc]
                gaps.append(pulse.longest_s)
                progress(f"{how.name} {turn + 1} of {times}: {gaps[-1]:.2f} s")
                await_condition("the process's end", lambda b=leader: cluster.broker_pid(b) is None)  # type: ignore[misc]
                cluster.start_broker(leader)
        finally:
            pulse.stop()
    return gaps


def kafka_gap(peer: Peer) -> float:
    """The gap after one kill -9 of the leader, Kafka's defaults."""
    admin = AdminClient({"bootstrap.servers": peer.bootstrap})
    for future in admin.create_topics([NewTopic(TOPIC, 1, 3)]).values():
        future.result()
    time.sleep(2)
    leader = admin.list_topics(TOPIC).topics[TOPIC].partitions[0].leader
    producer = KafkaProducer(
        {
            "bootstrap.servers": peer.bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0,
            "message.timeout.ms": 60_000,
        }
    )
    last, longest = time.monotonic(), 0.0

    def delivered(error: object, _message: object) -> None:
        nonlocal last, longest
        if error is None:
            now = time.monotonic()
            longest, last = max(longest, now - last), now

    began, killed = time.monotonic(), False
    while (since := time.monotonic() - began) < 25:
        producer.produce(TOPIC, b"x" * 100, on_delivery=delivered)
        producer.poll(0.01)
        if not killed and since > 4:
            killed, longest = True, 0.0
            victim: subprocess.Popen[bytes] = peer.processes[leader - 1]
            victim.kill()
    producer.flush(30)
    return longest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--moves", type=int, default=5)
    parser.add_argument("--no-kafka", action="store_true", help="only ours")
    args = parser.parse_args()
    with local_cluster(3) as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic(TOPIC, 1, 3)
        kills = measure_gaps(cluster, args.kills, signal.SIGKILL)
        moves = measure_gaps(cluster, args.moves, signal.SIGTERM)
    missing = "not asked for" if args.no_kafka else available()
    peer_gap = None
    if missing is None:
        with kafka(3) as peer:
            peer_gap = kafka_gap(peer)
    vs = "Kafka 4.3, defaults, one kill" if peer_gap else None
    figure("write gap after kill -9 of the leader, median", median(kills), "s", vs, peer_gap)
    figure("write gap after kill -9 of the leader, p99", percentile(kills, 0.99), "s", vs, peer_gap)
    if moves:
        figure("write gap of a planned leader move, worst", max(moves), "s", "limit", 0.3)


if __name__ == "__main__":
    main()
