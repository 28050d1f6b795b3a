"""`make demo`: a year of flights, exactly once from end to end, while three processes are killed.

    flights.py ─▶ producer ─▶ flights ─▶ enrich.py ─▶ enriched ─▶ spark_job.py ─▶ delays
                (this process)         (transactions)  (read_committed, windows, exactly-once sink)

    kill -9: the transformer, the leader of the busiest partition, the Spark driver; each is started
    again. Then all topics are read back: verdict.py says PASS or FAIL, with reasons.

Exit code 0 for PASS, 1 for FAIL. Ctrl-C stops everything that was started.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from examples.flights.flights import Flights, load
from examples.flights.jobs import Job, SparkJob, transformer
from examples.flights.kills import Place, kill_leader, kill_with_open_transaction, note_returned
from examples.flights.live import Board
from examples.flights.readback import read_topic, settle
from examples.flights.screen import show_outcome, showing
from examples.flights.verdict import (
    DELAY_FIELDS,
    ENRICHED_FIELDS,
    FLIGHT_FIELDS,
    Evidence,
    Outcome,
    decide,
)
from examples.flights.workers import (
    DELAYS,
    ENRICHED,
    FLIGHTS,
    Reader,
    Sender,
    Transactions,
    Watcher,
)
from penstock.client import Admin
from penstock.errors import ClusterError, PenstockError
from penstock_broker.local import LocalCluster

HERE = Path(__file__).parent
KEPT = Path(".local/demo")
OUTPUTS = {ENRICHED: 6, DELAYS: 3}
KILL_TRANSFORMER_AT, KILL_BROKER_AT, KILL_SPARK_AT = 0.2, 0.4, 0.5
BROKER_AWAY_SECONDS = 12.0
SPARK_START_SECONDS = 300.0
STUCK_SECONDS = 300.0


class Demo:
    """The story, step by step; `run` returns what the verdict is made of."""

    def __init__(self, cluster: LocalCluster, flights: Flights, results: Path) -> None:
        self._cluster, self._flights = cluster, flights
        self._bootstrap = cluster.bootstrap
        self._admin = Admin(cluster.bootstrap)
        self.board = board = Board(len(flights))
        self._sender = Sender(cluster.bootstrap, flights, board)
        self._transformer = transformer(cluster.bootstrap, results, FLIGHTS, ENRICHED)
        self._spark = SparkJob(cluster.bootstrap, results, ENRICHED, DELAYS)
        self._threads = (
            self._sender,
            Watcher(cluster.bootstrap, board),
            Reader(cluster.bootstrap, board),
            Transactions(self._metrics, board),
        )
        self._victim: tuple[int, int] | None = None
        self._killed_at = 0.0
        self._left_open: dict[str, list[Place]] = {}

    def run(self) -> Outcome:
        board = self.board
        self._prepare()
        self._until(lambda: self._spark.ready, SPARK_START_SECONDS, "Spark did not start")
        board.tell("the pipeline stands; producing with acks=all")
        self._sender.thread.start()
        self._until_produced(KILL_TRANSFORMER_AT)
        self._kill_and_restart(self._transformer, ENRICHED)
        self._until_produced(KILL_BROKER_AT)
        self._kill_broker()
        self._until_produced(KILL_SPARK_AT)
        self._until(lambda: board.updates > 0, SPARK_START_SECONDS, "Spark wrote nothing")
        self._kill_and_restart(self._spark, DELAYS)
        self._until_produced(1.0)
        board.tell("every flight is acknowledged; the pipeline catches up", "green")
        self._until_all_is_through()
        self._spark.stop()
        self._transformer.stop()
        board.tell("reading everything back; comparing")
        return decide(self._evidence())

    def stop(self) -> None:
        for worker in self._threads:
            worker.stop()
        self._transformer.stop()
        self._spark.stop()
        for worker in self._threads:
            if worker.thread.is_alive():
                worker.thread.join(timeout=10)
        self._admin.close()

    # ── the story's steps ─────────────────────────────────────────────────────────────────

    def _prepare(self) -> None:
        for topic, partitions in OUTPUTS.items():
            # The flights took off in 2013: retention by age would remove them all at once.
            configs = {"min.insync.replicas": "2", "retention.ms": "-1"}
            self._admin.create_topic(topic, partitions, 3, configs)
        self._spark.start()
        self._transformer.start()
        for worker in self._threads[1:]:
            worker.thread.start()
        self.board.tell("three brokers serve; transformer and Spark start")

    def _until_produced(self, share: float) -> None:
        board = self.board
        moved = self._while_moving(
            lambda: board.acknowledged < share * board.total, lambda: board.acknowledged
        )
        if not moved:
            raise ClusterError(f"no flight was acknowledged for {STUCK_SECONDS:.0f} s")

    def _until_all_is_through(self) -> None:
        """Returns also when nothing moves any more: the verdict then says what is missing."""
        board = self.board
        moved = self._while_moving(
            lambda: board.in_windows < board.total or board.enriched < board.total,
            lambda: (board.enriched, board.updates, self._spark.ready, self._spark.doing),
        )
        if not moved:
            board.tell(f"nothing has moved for {STUCK_SECONDS:.0f} s", "bold red")

    def _kill_and_restart(self, job: Job, topic: str) -> None:
        left = kill_with_open_transaction(job, topic, self._admin, self.board, self._step)
        self._left_open[topic] = left
        job.start()
        self.board.tell(f"{job.name} is started again", "green")

    def _kill_broker(self) -> None:
        partition = self._sender.by_partition.most_common(1)[0][0]
        self._killed_at = time.monotonic()
        leader = kill_leader(self._cluster, self.board, partition)
        self._victim = (leader, partition) if leader >= 0 else None

    def _evidence(self) -> Evidence:
        bootstrap = self._bootstrap
        for topic in OUTPUTS:
            settle(self._admin, topic)
        killed = self.board.killed
        wanted = {
            "the transformer": self._transformer.name in killed,
            "a broker": self._victim is not None,
            "the Spark driver": self._spark.name in killed,
        }
        return Evidence(
            flights=self._flights,
            acks=self._sender.acks,
            late=self._spark.late,
            log=read_topic(bootstrap, FLIGHTS, "read_committed", FLIGHT_FIELDS),
            enriched=read_topic(bootstrap, ENRICHED, "read_committed", ENRICHED_FIELDS),
            enriched_stored=read_topic(bootstrap, ENRICHED, "read_uncommitted", ENRICHED_FIELDS),
            delays=read_topic(bootstrap, DELAYS, "read_committed", DELAY_FIELDS),
            delays_stored=read_topic(bootstrap, DELAYS, "read_uncommitted", DELAY_FIELDS),
            left_open=self._left_open,
            not_killed=[who for who, was in wanted.items() if not was],
        )

    # ── while something is waited for ─────────────────────────────────────────────────────

    def _until(self, done: Callable[[], bool], limit_s: float, complaint: str) -> None:
        limit = time.monotonic() + limit_s
        while not done():
            self._step()
            if time.monotonic() > limit:
                raise ClusterError(f"{complaint} within {limit_s:.0f} s: {self._spark.complaint()}")

    def _while_moving(self, going: Callable[[], bool], moving: Callable[[], object]) -> bool:
        """Until it is not going any more; False when `moving` answered the same for too long."""
        last, since = moving(), time.monotonic()
        while going():
            self._step()
            if (now := moving()) != last:
                last, since = now, time.monotonic()
            if time.monotonic() - since > STUCK_SECONDS:
                return False
        return True

    def _step(self) -> None:
        """Looks after everybody; brings the broker back when it is time."""
        if self._sender.error is not None:
            raise ClusterError(f"producing failed: {self._sender.error}")
        jobs = (self._transformer, self._spark)
        for job in jobs:
            job.check()
        note_returned(jobs, self.board)
        if self._victim is not None:
            self._bring_back(*self._victim)
        time.sleep(0.05)

    def _bring_back(self, broker: int, partition: int) -> None:
        board = self.board
        if board.down and time.monotonic() - self._killed_at > BROKER_AWAY_SECONDS:
            self._cluster.start_broker(broker)
            board.down = set()
            board.tell(f"broker {broker} is started again and catches up", "green")
        if board.waiting_since is not None:
            seen = self._sender.last_ack(partition) - self._killed_at
            if seen > 0.05 and self._has_new_leader(broker, partition):
                board.waiting_since = None
                board.tell(f"partition {partition} takes writes again after {seen:.2f} s", "yellow")
        board.write_gap_s = self._sender.gap_s(partition)

    def _has_new_leader(self, broker: int, partition: int) -> bool:
        rows = self.board.partitions
        return any(row.partition == partition and row.leader not in (-1, broker) for row in rows)

    def _metrics(self) -> dict[int, str]:
        cluster = self._cluster
        running = [broker for broker in cluster.broker_ids if broker not in self.board.down]
        return {broker: cluster.metrics_address(broker) for broker in running}


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
            console.print(f"[bold red]FAIL[/]: {escape(str(error))}; logs are kept in {KEPT}/")
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
