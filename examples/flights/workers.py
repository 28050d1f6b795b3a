"""The demo's three workers beside the main thread: Spark's process, the sender, the watcher.

Each has a `stop` that may be called at any time and leaves nothing behind.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

from examples.flights.flights import Flights
from examples.flights.live import Board, PartitionRow
from penstock.client import LATEST, Admin, Delivery, Producer, TopicPartition
from penstock.errors import ClusterError, PenstockError

TOPIC = "flights"
WRITE_SECONDS = 60.0
ROOT = Path(__file__).parent.parent.parent


class SparkJob:
    """The Spark process: progress on its stdout, orders on its stdin."""

    def __init__(self, bootstrap: str, results: Path) -> None:
        command = [sys.executable, "-m", "examples.flights.spark_job", "--bootstrap", bootstrap]
        self._log = (results / "spark.log").open("w")
        self._process = subprocess.Popen(
            [*command, "--topic", TOPIC, "--results", str(results)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
            cwd=ROOT,
            # What Spark leaves in temporary directories when it is stopped goes with the results.
            env={**os.environ, "TMPDIR": str(results), "SPARK_LOCAL_DIRS": str(results)},
        )
        self.ready = threading.Event()
        self.done = threading.Event()
        self.rows = 0
        self.late = 0
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            with contextlib.suppress(ValueError):
                event: dict[str, Any] = json.loads(text)
                self.rows = event.get("rows", self.rows)
                self.late = event.get("late", self.late)
                if event.get("ready"):
                    self.ready.set()
                if event.get("done"):
                    self.done.set()
        self.ready.set()  # it ended: nobody need wait on
        self.done.set()

    def finish(self, rows: int) -> None:
        assert self._process.stdin is not None
        if not self.alive():
            raise ClusterError(f"Spark ended early: {self.complaint()}")
        self._process.stdin.write(f"finish {rows}\n")
        self._process.stdin.flush()

    def alive(self) -> bool:
        return self._process.poll() is None

    def ended_well(self) -> bool:
        try:
            return self._process.wait(timeout=30) == 0
        except subprocess.TimeoutExpired:
            return False

    def complaint(self) -> str:
        """The line of its log that says what went wrong."""
        lines = Path(self._log.name).read_text().splitlines()
        errors = r"(pyspark|penstock|py4j|: org\.apache)\S*(Error|Exception)"
        telling = [text for text in lines if re.match(errors, text)]
        said = [text for text in lines if text.strip()]
        return (telling or said or ["it wrote nothing"])[-1][:300]

    def stop(self) -> None:
        """Ends the process and the JVM it started."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._log.close()


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
                    TOPIC,
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
        topic = admin.describe_topics([TOPIC])[TOPIC]
        rows = [
            PartitionRow(each.partition, each.leader, each.leader_epoch, each.isr, each.replicas)
            for each in topic.partitions
        ]
        led = [TopicPartition(TOPIC, row.partition) for row in rows if row.leader >= 0]
        known = {row.partition: row.high_watermark for row in self._board.partitions}
        self._board.partitions = rows
        for row in rows:
            row.high_watermark = known.get(row.partition, 0)
        ends = admin.list_offsets(dict.fromkeys(led, LATEST))
        for row in rows:
            if found := ends.get(TopicPartition(TOPIC, row.partition)):
                row.high_watermark = max(row.high_watermark, found.offset)
        self._board.replicated = sum(row.high_watermark for row in rows)
