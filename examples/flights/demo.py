"""`make demo`: a year of flights through three brokers, one of them killed, judged by Spark.

    cluster.yaml ─▶ local cluster ◀── producer (this process) ── flights.py
                        │  ▲ kill -9 of the busiest partition's leader, half-way
                        └──┴─▶ spark_job.py (its own process): live windows, then a batch read
                                        └─▶ verdict.py: PASS or FAIL, with reasons

Exit code 0 for PASS, 1 for FAIL. Ctrl-C stops everything that was started.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from rich.console import Console

from examples.flights.flights import Flights, load
from examples.flights.live import Board
from examples.flights.screen import show_outcome, showing
from examples.flights.verdict import Outcome, decide
from examples.flights.workers import Sender, SparkJob, Watcher
from penstock.errors import ClusterError, PenstockError
from penstock_broker.local import LocalCluster

HERE = Path(__file__).parent
KEPT = Path(".local/demo")
KILL_AT = 0.4
BROKER_AWAY_SECONDS = 12.0
SPARK_START_SECONDS = 120.0
SPARK_FINISH_SECONDS = 120.0


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
            if not self._spark.alive():
                raise ClusterError(f"Spark ended early: {self._spark.complaint()}")
            time.sleep(0.05)
        if sender.error is not None:
            raise ClusterError(f"producing failed: {sender.error}")
        board.tell("every flight is acknowledged; Spark catches up", "green")
        self._spark.finish(len(self._flights))
        self._wait(self._spark.done, SPARK_FINISH_SECONDS, "Spark did not catch up")
        self._step()
        if not self._spark.ended_well():
            raise ClusterError(f"Spark failed: {self._spark.complaint()}")
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
        self._measure_gap(partition)

    def _kill(self) -> None:
        partition = self._sender.by_partition.most_common(1)[0][0]
        leader = next(
            (row.leader for row in self.board.partitions if row.partition == partition), -1
        )
        if leader < 0:
            return
        self._victim = (leader, partition)
        self._killed_at = time.monotonic()
        pid = self._cluster.broker_pid(leader)
        self._cluster.kill(leader, signal.SIGKILL)
        self.board.down = {leader}
        self.board.waiting_since = self._killed_at
        self.board.tell(
            f"kill -9 {pid}: broker {leader}, leader of partition {partition}, the busiest",
            "bold red",
        )

    def _measure_gap(self, partition: int) -> None:
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
                raise ClusterError(f"{complaint} within {limit_s:.0f} s: {self._spark.complaint()}")
        if not self._spark.alive() and event is self._spark.ready:
            raise ClusterError(f"{complaint}: {self._spark.complaint()}")


def keep_logs(results: Path) -> None:
    """Leaves the logs of this run, and only this run, where they can be read afterwards."""
    shutil.rmtree(KEPT, ignore_errors=True)
    KEPT.mkdir(parents=True)
    for log in (*results.glob("*.log"), *results.glob("cluster/logs/*")):
        shutil.copy(log, KEPT)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo", description="Flights through Penstock.")
    parser.add_argument("--screenshot", type=Path, help="save the live view here as SVG")
    args = parser.parse_args()
    console = Console()
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
            console.print(f"[bold red]FAIL[/]: {error}; logs are kept in {KEPT}/")
            return 1
        finally:
            if demo is not None:
                demo.stop()
            cluster.stop()
            keep_logs(results)
    show_outcome(console, demo.board, outcome)
    return 1 if outcome.reasons else 0


if __name__ == "__main__":
    sys.exit(main())
