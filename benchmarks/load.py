"""A load on one topic and a probe beside it, each in a thread of its own until it is stopped.

What a benchmark does to brokers is seen in the probe's latencies: those beside it over those
without, with the same load. A load that has failed would flatter every ratio, so `stop` raises.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections import deque

from penstock.client import Acks, ColumnsDelivery, Producer
from penstock_broker.local import LocalCluster

LIVE = "live"
PARTITIONS = 6
RECORD_BYTES = 1_000
RECORDS = 100
"""Of one `send_columns`."""
OUTSTANDING_MAX = 200


class Writing(ABC):
    """Writes from when it is made until `stop`."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._keep_failure, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns when it has ended; raises what it has failed with."""
        self._stop.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _keep_failure(self) -> None:
        try:
            self._run()
        except Exception as error:  # noqa: BLE001 - raised by `stop`
            self._failure = error

    @abstractmethod
    def _run(self) -> None: ...


class Load(Writing):
    """Writes to a topic: at `bytes_per_s`, or as fast as it is acknowledged."""

    def __init__(self, bootstrap: str, topic: str, bytes_per_s: float | None) -> None:
        self._topic = topic
        self._bytes_per_s = bytes_per_s
        self.acknowledged_bytes = 0
        super().__init__(bootstrap)

    def _run(self) -> None:
        values = [b"x" * RECORD_BYTES] * RECORDS
        size = RECORD_BYTES * RECORDS
        waiting = deque[ColumnsDelivery]()
        began, sent = time.monotonic(), 0
        with Producer(self._bootstrap, acks=Acks.ALL, linger_ms=5) as producer:
            while not self._stop.is_set():
                if self._bytes_per_s is not None:
                    ahead_s = sent / self._bytes_per_s - (time.monotonic() - began)
                    if ahead_s > 0:
                        self._stop.wait(ahead_s)
                waiting.append(
                    producer.send_columns(self._topic, values, partition=sent // size % PARTITIONS)
                )
                sent += size
                while len(waiting) > OUTSTANDING_MAX:
                    waiting.popleft().result(120)
                    self.acknowledged_bytes += size


class Probe(Writing):
    """One small record after the other, over all partitions of LIVE; how long each took."""

    def __init__(self, bootstrap: str) -> None:
        self._took_s: list[float] = []
        super().__init__(bootstrap)

    def latencies_s(self) -> list[float]:
        """Stops it."""
        self.stop()
        return self._took_s

    def _run(self) -> None:
        turn = 0
        with Producer(self._bootstrap, acks=Acks.ALL, linger_ms=0) as producer:
            while not self._stop.wait(0.005):
                turn += 1
                began = time.monotonic()
                producer.send(LIVE, b"x" * 100, partition=turn % PARTITIONS).result(120)
                self._took_s.append(time.monotonic() - began)


def top_rate(cluster: LocalCluster, seconds: float) -> float:
    """Bytes per second of LIVE, as fast as they are acknowledged."""
    load = Load(cluster.bootstrap, LIVE, None)
    time.sleep(2)
    before, began = load.acknowledged_bytes, time.monotonic()
    time.sleep(seconds)
    rate = (load.acknowledged_bytes - before) / (time.monotonic() - began)
    load.stop()
    return rate
