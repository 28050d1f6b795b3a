"""`make demo`: a year of flights through three brokers, one of them killed, judged by Spark.

    cluster.yaml ─▶ local cluster ◀── producer (this process) ── flights.py
                        │  ▲ kill -9 of the busiest partition's leader, half-way
                        └──┴─▶ spark_job.py (its own process): live windows, then a batch read
                                        └─▶ verdict.py: PASS or FAIL, with reasons

Exit code 0 for PASS, 1 for FAIL. Ctrl-C stops everything that was started.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.live import Live
from rich.table import Table

from examples.flights.flights import Flights, load
from examples.flights.live import Board, PartitionRow, line, render
from examples.flights.verdict import Outcome, decide
from penstock.client import LATEST, Admin, Delivery, Producer, TopicPartition
from penstock.errors import PenstockError
from penstock_broker.local import LocalCluster

HERE = Path(__file__).parent
TOPIC = "flights"
WRITE_SECONDS = 60.0
KILL_AT = 0.4
BROKER_AWAY_SECONDS = 12.0
SPARK_START_SECONDS = 90.0
SPARK_FINISH_SECONDS = 120.0


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
            cwd=HERE.parent.parent,
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
        self._process.stdin.write(f"finish {rows}\n")
        self._process.stdin.flush()

    def alive(self) -> bool:
        return self._process.poll() is None

    def ended_well(self) -> bool:
        try:
            return self._process.wait(timeout=30) == 0
        except subprocess.TimeoutExpired:
            return False

    def log_tail(self) -> str:
        """The last line of its log that says what went wrong."""
        lines = [text for text in Path(self._log.name).read_text().splitlines() if text.strip()]
        return lines[-1] if lines else "it wrote nothing"

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
        (topic,) = admin.describe_topics([TOPIC])
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


class Demo:
    """The story, step by step; `run` returns what the verdict is made of."""

    def __init__(self, cluster: LocalCluster, flights: Flights, results: Path) -> None:
        self._cluster, self._flights, self._results = cluster, flights, results
        self.board = Board(len(flights))
        self._sender = Sender(cluster.bootstrap, flights, self.board)
        self._watcher = Watcher(cluster.bootstrap, self.board)
        self._spark = SparkJob(cluster.bootstrap, results)
        self._victim: tuple[int, int] | None = None
        self._killed_at = 0.0

    def run(self) -> Outcome:
        board, sender = self.board, self._sender
        self._watcher.thread.start()
        board.tell("three brokers serve; Spark is starting")
        self._wait(self._spark.ready, SPARK_START_SECONDS, "Spark did not start")
        board.tell("Spark reads the topic live; producing with acks=all")
        sender.thread.start()
        while sender.thread.is_alive():
            self._step()
            time.sleep(0.05)
        if sender.error is not None:
            raise SystemExit(f"producing failed: {sender.error}")
        board.tell("every flight is acknowledged; Spark catches up", "green")
        self._spark.finish(len(self._flights))
        self._wait(self._spark.done, SPARK_FINISH_SECONDS, "Spark did not catch up")
        self._step()
        if not self._spark.ended_well():
            raise SystemExit(f"Spark failed: {self._spark.log_tail()}")
        board.tell("Spark read everything back; comparing")
        return decide(self._flights, sender.acks, self._spark.late, self._results)

    def stop(self) -> None:
        self._sender.stop()
        self._watcher.stop()
        self._spark.stop()
        for thread in (self._sender.thread, self._watcher.thread):
            if thread.is_alive():
                thread.join(timeout=10)

    def _step(self) -> None:
        """Kills when it is time, brings back when it is time, keeps the figures current."""
        board, now = self.board, time.monotonic()
        board.read = self._spark.rows
        if self._victim is None:
            if board.acknowledged >= KILL_AT * board.total:
                self._kill()
            return
        broker, partition = self._victim
        if board.down and now - self._killed_at > BROKER_AWAY_SECONDS:
            self._cluster.start_broker(broker)
            board.down = set()
            board.tell(f"broker {broker} is started again and catches up", "green")
        self._measure_gap(partition, now)

    def _kill(self) -> None:
        partition = self._sender.by_partition.most_common(1)[0][0]
        leader = next(
            (row.leader for row in self.board.partitions if row.partition == partition), -1
        )
        if leader < 0:
            return
        self._victim = (leader, partition)
        self._killed_at = time.monotonic()
        pid = self._cluster.kill(leader, signal.SIGKILL)
        self.board.down = {leader}
        self.board.waiting_since = self._killed_at
        self.board.tell(
            f"kill -9 {pid}: broker {leader}, leader of partition {partition}, the busiest",
            "bold red",
        )

    def _measure_gap(self, partition: int, now: float) -> None:
        board = self.board
        if board.waiting_since is not None and self._sender.last_ack(partition) > self._killed_at:
            seen = self._sender.last_ack(partition) - self._killed_at
            if seen > 0.05 and self._has_new_leader(partition):
                board.waiting_since = None
                board.tell(f"partition {partition} takes writes again after {seen:.2f} s", "yellow")
        board.write_gap_s = self._sender.gap_s(partition)

    def _has_new_leader(self, partition: int) -> bool:
        assert self._victim is not None
        rows = self.board.partitions
        return any(
            row.partition == partition and row.leader not in (-1, self._victim[0]) for row in rows
        )

    def _wait(self, event: threading.Event, limit_s: float, complaint: str) -> None:
        limit = time.monotonic() + limit_s
        while not event.wait(0.1):
            self._step() if self._victim else None
            self.board.read = self._spark.rows
            if time.monotonic() > limit:
                raise SystemExit(f"{complaint} within {limit_s:.0f} s: {self._spark.log_tail()}")
        if not self._spark.alive() and event is self._spark.ready:
            raise SystemExit(f"{complaint}: {self._spark.log_tail()}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo", description="Flights through Penstock.")
    parser.add_argument("--screenshot", type=Path, help="save the live view here as SVG")
    args = parser.parse_args()
    console = Console(record=args.screenshot is not None)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as scratch:
        results = Path(scratch)
        console.print("loading 336,776 flights and starting three brokers …")
        flights = load()
        cluster = LocalCluster.from_manifest(HERE / "cluster.yaml", data_dir=results / "cluster")
        demo: Demo | None = None
        try:
            cluster.start()
            demo = Demo(cluster, flights, results)
            with showing(console, demo.board, args.screenshot):
                outcome = demo.run()
        except KeyboardInterrupt:
            console.print("[bold]interrupted[/]: everything was stopped")
            return 130
        except PenstockError as error:
            console.print(f"[bold red]FAIL[/]: {error}")
            return 1
        finally:
            if demo is not None:
                demo.stop()
            cluster.stop()
    show_outcome(console, demo.board, outcome)
    return 1 if outcome.reasons else 0


@contextlib.contextmanager
def showing(console: Console, board: Board, screenshot: Path | None) -> Iterator[None]:
    """The live view on a terminal; elsewhere a line every five seconds."""
    stop = threading.Event()

    def paint() -> None:
        if console.is_terminal:
            with Live(render(board), console=console, refresh_per_second=8) as live:
                while not stop.wait(0.125):
                    live.update(render(board))
        else:
            told = 0
            while not stop.wait(5):
                for at, text, _ in board.events[told:]:
                    console.print(f"{at:5.1f} s · [bold]{text}[/]")
                told = len(board.events)
                console.print(line(board), highlight=False)

    def shoot() -> None:
        """Takes the picture a moment after writes go on: the story is on the screen then."""
        while not stop.wait(0.2):
            if board.down and board.waiting_since is None:
                stop.wait(2)
                picture = Console(record=True, width=118, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
                picture.print(render(board))
                assert screenshot is not None
                picture.save_svg(str(screenshot), title="make demo")
                return

    threads = [threading.Thread(target=paint)]
    if screenshot is not None:
        threads.append(threading.Thread(target=shoot))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def show_outcome(console: Console, board: Board, outcome: Outcome) -> None:
    """The result as a table, then PASS or FAIL with the reasons."""
    frame = pd.DataFrame(
        [(carrier, *value) for (_, carrier), value in outcome.streamed.items()],
        columns=["carrier", "flights", "departed", "delay"],
    )
    sums = frame.groupby("carrier").sum().sort_values("flights", ascending=False)
    table = Table(title="What Spark kept while the stream ran", title_style="bold")
    for column in ("carrier", "flights", "cancelled", "mean delay", ""):
        table.add_column(column, justify="left" if column in ("carrier", "") else "right")
    most = int(sums["flights"].max())
    for carrier, row in sums.iterrows():
        mean = row["delay"] / row["departed"] if row["departed"] else 0.0
        bar = "█" * max(1, round(30 * row["flights"] / most))
        cancelled = row["flights"] - row["departed"]
        table.add_row(
            str(carrier),
            f"{row['flights']:,}",
            f"{cancelled:,}",
            f"{mean:.1f} min",
            f"[cyan]{bar}[/]",
        )
    console.print(table)
    console.print(
        f"{outcome.flights:,} flights in the log · {len(outcome.streamed):,} hourly windows · "
        f"nothing could be written to the killed leader's busiest partition for "
        f"{board.write_gap_s or 0:.2f} s · {time.monotonic() - board.began:.0f} s in all"
    )
    for reason in outcome.reasons:
        console.print(f"[bold red]FAIL[/]: {reason}")
    if not outcome.reasons:
        console.print(
            "[bold green]PASS[/]: every flight arrived exactly once, in order per carrier, and "
            "the streamed aggregates equal the source file's"
        )


if __name__ == "__main__":
    sys.exit(main())
