"""The demo's threads beside the main one: the sender, and those who look at the cluster.

Each has a `stop` that may be called at any time and leaves nothing behind.
"""

import contextlib
import json
import re
import threading
import time
import urllib.request
from collections import Counter, deque
from collections.abc import Callable

from examples.flights.flights import Flights
from examples.flights.live import Board, PartitionRow
from penstock.client import LATEST, Admin, Consumer, Delivery, Producer, TopicPartition
from penstock.errors import PenstockError

FLIGHTS = "flights"
ENRICHED = "enriched"
DELAYS = "delays"
WRITE_SECONDS = 60.0


class Sender:
    """Produces all flights at an even pace and keeps what the cluster answered."""

    def __init__(self, bootstrap: str, flights: Flights, board: Board) -> None:
        self._bootstrap, self._flights, self._board = bootstrap, flights, board
        self._pending: deque[tuple[int, float, Delivery]] = deque()
        self.acks: list[dict[str, object]] = []
        self.by_partition: Counter[int] = Counter()
        self.error: BaseException | None = None
        self._last_ack: dict[int, float] = {}
        self._gap: dict[int, float] = {}
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._guarded, daemon=True)

    def stop(self) -> None:
        self._stop.set()

    def gap_s(self, partition: int) -> float:
        """The longest time between two acknowledgements of this partition."""
        return self._gap.get(partition, 0.0)

    def last_ack(self, partition: int) -> float:
        return self._last_ack.get(partition, time.monotonic())

    def _guarded(self) -> None:
        try:
            self._run()
        except Exception as error:  # noqa: BLE001 - shown by the demo as the reason of a FAIL
            self.error = error

    def _run(self) -> None:
        flights, began = self._flights, time.monotonic()
        with Producer(self._bootstrap) as producer:
            for index in range(len(flights)):
                if self._stop.is_set():
                    return
                delivery = producer.send(
                    FLIGHTS,
                    flights.values[index],
                    flights.keys[index],
                    timestamp_ms=flights.timestamps_ms[index],
                )
                self._pending.append((index, time.monotonic(), delivery))
                if index % 100 == 0:
                    self._board.produced = index
                    self._harvest()
                    due = began + WRITE_SECONDS * index / len(flights)
                    self._stop.wait(max(0.0, due - time.monotonic()))
            self._board.produced = len(flights)
            while self._pending and not self._stop.is_set():
                self._harvest()
                self._stop.wait(0.01)

    def _harvest(self) -> None:
        """Takes down every answer that is there; the oldest come first."""
        waiting: deque[tuple[int, float, Delivery]] = deque()
        now = time.monotonic()
        stuck: set[str] = set()
        while self._pending:
            entry = self._pending.popleft()
            index, _, delivery = entry
            carrier = self._flights.carriers[index]
            if carrier in stuck or not delivery.done():
                stuck.add(carrier)
                waiting.append(entry)
                continue
            self._note(index, delivery, now)
        self._pending = waiting

    def _note(self, index: int, delivery: Delivery, now: float) -> None:
        report = delivery.result()
        partition = report.partition
        before = self._last_ack.get(partition, now)
        self._gap[partition] = max(self._gap.get(partition, 0.0), now - before)
        self._last_ack[partition] = now
        self.by_partition[partition] += 1
        self._board.acknowledged += 1
        where = {"p": partition, "o": report.offset, "t": now * 1000}
        event = {"e": "ack", "s": self._flights.carriers[index], "n": 1, **where}
        self.acks.append({**event, "q": self._flights.numbers[index]})


class Watcher:
    """Asks the cluster who leads and how far it is, twice a second."""

    def __init__(self, bootstrap: str, board: Board) -> None:
        self._bootstrap, self._board = bootstrap, board
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        with Admin(self._bootstrap) as admin:
            while not self._stop.wait(0.5):
                with contextlib.suppress(PenstockError):
                    self._look(admin)

    def _look(self, admin: Admin) -> None:
        topic = admin.describe_topics([FLIGHTS])[FLIGHTS]
        rows = [
            PartitionRow(each.partition, each.leader, each.leader_epoch, each.isr, each.replicas)
            for each in topic.partitions
        ]
        led = [TopicPartition(FLIGHTS, row.partition) for row in rows if row.leader >= 0]
        known = {row.partition: row.high_watermark for row in self._board.partitions}
        self._board.partitions = rows
        for row in rows:
            row.high_watermark = known.get(row.partition, 0)
        ends = admin.list_offsets(dict.fromkeys(led, LATEST))
        for row in rows:
            if found := ends.get(TopicPartition(FLIGHTS, row.partition)):
                row.high_watermark = max(row.high_watermark, found.offset)
        self._board.replicated = sum(row.high_watermark for row in rows)


class Reader:
    """Reads both outputs as they become visible, as a dashboard would."""

    def __init__(self, bootstrap: str, board: Board) -> None:
        self._bootstrap, self._board = bootstrap, board
        self._windows: dict[bytes, int] = {}
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        with Admin(self._bootstrap) as admin:
            topics = admin.describe_topics([ENRICHED, DELAYS])
        places = [
            TopicPartition(name, each.partition)
            for name, topic in topics.items()
            for each in topic.partitions
        ]
        with Consumer(self._bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign(places)
            while not self._stop.is_set():
                with contextlib.suppress(PenstockError):
                    for batch in consumer.poll(0.2):
                        if batch.topic == ENRICHED:
                            self._board.enriched += batch.record_count
                        else:
                            self._keep(batch.keys(), batch.values())

    def _keep(self, keys: list[bytes | None], values: list[bytes | None]) -> None:
        for key, value in zip(keys, values, strict=True):
            flights = json.loads(value or b"{}").get("flights", 0)
            window = key or b""
            self._board.in_windows += flights - self._windows.get(window, 0)
            self._windows[window] = flights
        self._board.updates += len(keys)
        self._board.windows = len(self._windows)


ENDED = re.compile(r"^penstock_transactions_ended_total\{(.*?)\} ([0-9.e+]+)$", re.MULTILINE)
OPEN = re.compile(r"^penstock_transactions_open(?:\{.*?\})? ([0-9.e+]+)$", re.MULTILINE)


class Transactions:
    """Counts transactions by the brokers' metrics, twice a second."""

    def __init__(self, metrics: Callable[[], dict[int, str]], board: Board) -> None:
        """`metrics`: the addresses of the brokers that run."""
        self._metrics, self._board = metrics, board
        self._before: dict[int, Counter[str]] = {}
        self._now: dict[int, Counter[str]] = {}
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            opened = 0
            for broker, address in self._metrics().items():
                with contextlib.suppress(OSError):
                    text = self._page(address)
                    opened += sum(int(float(found)) for found in OPEN.findall(text))
                    self._count(broker, text)
            self._board.transactions_open = opened
            total = sum((*self._before.values(), *self._now.values()), Counter[str]())
            self._board.transactions_ended = dict(total)

    def _page(self, address: str) -> str:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=2) as answer:
            return str(answer.read().decode())

    def _count(self, broker: int, text: str) -> None:
        """A broker that was started again counts from 0."""
        seen: Counter[str] = Counter()
        for labels, value in ENDED.findall(text):
            named = dict(re.findall(r'(\w+)="(.*?)"', labels))
            name = "commit" if named["outcome"] == "commit" else named["reason"]
            seen[name] += int(float(value))
        known = self._now.get(broker, Counter())
        if sum(seen.values()) < sum(known.values()):
            self._before[broker] = self._before.get(broker, Counter()) + known
        self._now[broker] = seen
