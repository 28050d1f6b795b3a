"""A coordinator dies with -9 around the commit of a batch that a real Spark writes (I11).

    tasks: rows stored ─▶ driver: commit ─▶ decision ─▶ markers ─▶ done, for Spark
                       │                 │          │          │
                     asked            before      after     marker, told

`asked` and `told` hold the driver on either side of its call; the coordinator stays away then, and
another takes over. At the others the broker dies by itself at that write, and comes back. It also
leads one of the two partitions that are written to.
"""

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from support.cluster import Cluster
from support.faults import Faults, faulty_cluster, make_well
from support.gates import Gate
from support.waiting import wait_until

from penstock.client import Admin, Consumer, Producer, TopicPartition, TransactionState
from penstock.core.transactions.config import TRANSACTIONS_TOPIC, coordinator_partition
from penstock.spark.exactly_once import ExactlyOnceBatchWriter, ExactlyOnceStreamWriter
from penstock.spark.source import PenstockDataSource

if TYPE_CHECKING:
    from .conftest import Bench

pytestmark = pytest.mark.spark
ROWS = 10
"""Per partition, of which there are two, each read by a task of its own."""
RUN_TIMEOUT_S = 300
LOST = "the answer is lost"
CASES = [
    *(("stream", moment) for moment in ("asked", "before", "after", "marker")),
    *(("batch", moment) for moment in ("before", "marker")),
]
FIRST = sorted(f"{partition}-{number}" for partition in (0, 1) for number in range(ROWS))


@pytest.fixture(scope="module")
def module_faulty(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Cluster, list[Faults]]]:
    with faulty_cluster(tmp_path_factory.mktemp("faulty")) as made:
        yield made


@pytest.fixture(scope="module")
def cluster(module_faulty: tuple[Cluster, list[Faults]]) -> Cluster:
    """For `bench`, in place of the one that all tests share."""
    return module_faulty[0]


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap) as client:
        yield client


@pytest.fixture(scope="module")
def producer(cluster: Cluster) -> Iterator[Producer]:
    with Producer(cluster.bootstrap) as client:
        yield client


def held_sink(name: str, place: str, gate: Path) -> type[PenstockDataSource]:
    """The sink as it is, but its first commit stops at `place`: "asked", before it does anything,
    or "told", when it took effect; that one raises when it may go on.

    The file at `gate` with the suffix .reached is there when it has stopped. Made in here because
    Spark's processes get such classes by value: they have no tests to import.
    """
    reached = gate.with_suffix(".reached")

    def pass_by(here: str) -> None:
        if here != place or reached.exists():
            return
        reached.touch()
        gate.read_bytes()
        if here == "told":
            raise ConnectionError(LOST)

    class Stream(ExactlyOnceStreamWriter):
        def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
            pass_by("asked")
            super().commit(messages, batchId)
            pass_by("told")

    class Batch(ExactlyOnceBatchWriter):
        def commit(self, messages: Any) -> None:
            pass_by("asked")
            super().commit(messages)
            pass_by("told")

    class Source(PenstockDataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def streamWriter(self, schema: Any, overwrite: bool) -> Stream:  # noqa: N802 - Spark's name
            real = super().streamWriter(schema, overwrite)
            assert isinstance(real, ExactlyOnceStreamWriter)
            return Stream(real._options)

        def writer(self, schema: Any, overwrite: bool) -> Batch:
            real = super().writer(schema, overwrite)
            assert isinstance(real, ExactlyOnceBatchWriter)
            return Batch(real._options)

    return Source


@dataclass
class Scene:
    """A topic with rows, another for the copy, an application, and who coordinates it: `victim`.

    `bystander` leads the other partition of the copy.
    """

    bench: "Bench"
    faults: list[Faults]
    app_id: str
    victim: int
    bystander: int
    sink: str = "penstock"
    reads: int = 0

    @property
    def target(self) -> str:
        return f"{self.bench.topic}-copy"

    @property
    def checkpoint(self) -> Path:
        return self.bench.home / "checkpoint"

    @property
    def places(self) -> list[TopicPartition]:
        return [TopicPartition(self.target, partition) for partition in (0, 1)]

    def _options(self) -> dict[str, str]:
        return {
            "penstock.bootstrap.servers": self.bench.cluster.bootstrap,
            "topic": self.target,
            "delivery": "exactly-once",
            "txnAppId": self.app_id,
        }

    def stream(self) -> None:
        """Copies what is new as a stream, and ends. Raises what the query raised."""
        rows = self.bench.stream(startingOffsets="earliest", minPartitions="2").load()
        writing = rows.select("value", "partition").writeStream.format(self.sink)
        options = {**self._options(), "checkpointLocation": str(self.checkpoint)}
        query = writing.options(**options).trigger(availableNow=True).start()
        assert query.awaitTermination(RUN_TIMEOUT_S)

    def batch(self) -> None:
        """Copies everything as batch 0 of the application. Raises what the job raised."""
        rows = self.bench.reader(minPartitions="2").load().select("value", "partition")
        writing = rows.write.format(self.sink).mode("append")
        writing.options(**self._options(), txnVersion="0").save()

    def read(self, isolation: Any) -> list[str]:
        """What a reader finds, up to plain records at the ends."""
        self.reads += 1
        with Producer(self.bench.cluster.bootstrap) as plain:
            for partition in (0, 1):
                plain.send(self.target, b"end", partition=partition).result(60)
        seen: list[str] = []
        with Consumer(self.bench.cluster.bootstrap, isolation_level=isolation) as consumer:
            consumer.assign(self.places)

            def passed() -> bool:
                for batch in consumer.poll(0.5):
                    seen.extend((value or b"").decode() for value in batch.values())
                return seen.count("end") == 2 * self.reads

            wait_until(passed, what="the reader has passed everything")
        return sorted(value for value in seen if value != "end")

    def await_rest(self) -> None:
        """Until nothing is open or unfinished, for the coordinator and for the partitions."""

        def at_rest() -> bool:
            branches = self.bench.admin.describe_transaction(self.app_id).branches
            return all(
                branch.state is TransactionState.IDLE and not branch.finishing
                for branch in branches
            )

        wait_until(at_rest, what="no branch is open or unfinished")
        for place in self.places:
            assert self.bench.admin.partition_transactions(place).open == ()


@pytest.fixture
def scene(bench: "Bench", module_faulty: tuple[Cluster, list[Faults]]) -> Scene:
    cluster, faults = module_faulty
    make_well(cluster, faults)
    app_id = f"copying-{uuid.uuid4()}"
    coordinators = len(cluster.known(TRANSACTIONS_TOPIC).partitions)
    victim = cluster.leader(TRANSACTIONS_TOPIC, coordinator_partition(app_id, coordinators))
    bystander, third = (broker_id for broker_id in cluster.brokers if broker_id != victim)
    bench.create(2, 3)
    made = Scene(bench, faults, app_id, victim, bystander)
    cluster.create_topic(
        made.target, assignment=[[victim, bystander, third], [bystander, third, victim]]
    )
    for partition in (0, 1):
        bench.send(*(f"{partition}-{number}" for number in range(ROWS)), partition=partition)
    return made


def dying_at(scene: Scene, moment: str, run: Callable[[], None]) -> None:
    """The coordinator dies by itself at a write, and comes back while Spark goes on."""
    victim = scene.bench.cluster.brokers[scene.victim]
    if moment == "marker":
        scene.faults[scene.bystander].kill_at("marker", "before", victim)
    else:
        scene.faults[scene.victim].die_at("decision", moment)

    def bring_back() -> None:
        assert victim.wait_end(120) == -9
        victim.start()

    with ThreadPoolExecutor(1) as thread:
        back = thread.submit(bring_back)
        run()
        back.result()


def killed_at(scene: Scene, place: str, run: Callable[[], None]) -> None:
    """The coordinator is killed while the driver stands still; it comes back after the job."""
    gate = Gate(scene.bench.home / "gate")
    reached = gate.path.with_suffix(".reached")
    scene.sink = f"penstock-held-{scene.app_id}"
    scene.bench.spark.dataSource.register(held_sink(scene.sink, place, gate.path))
    victim = scene.bench.cluster.brokers[scene.victim]

    def kill() -> None:
        try:
            wait_until(reached.exists, what=f"the driver stands still: {place}", timeout_s=120)
            if place == "asked":
                for at in scene.places:
                    seen = scene.bench.admin.partition_transactions(at)
                    assert (len(seen.open), seen.high_watermark) == (1, ROWS), "tasks are done"
            victim.kill()
        finally:
            gate.open()

    # Spark finds what is registered in the thread that registered it.
    with ThreadPoolExecutor(1) as thread:
        killing = thread.submit(kill)
        try:
            run()
        finally:
            killing.result()
            victim.start()


@pytest.mark.parametrize(("sink", "moment"), CASES)
def test_a_batch_is_in_once_and_spark_notices_nothing_when_its_coordinator_dies(
    scene: Scene, sink: str, moment: str
) -> None:
    run = scene.stream if sink == "stream" else scene.batch
    if moment == "asked":
        killed_at(scene, moment, run)
    else:
        dying_at(scene, moment, run)
    scene.await_rest()
    assert scene.read("read_committed") == FIRST
    assert scene.read("read_uncommitted") == FIRST, "nothing was written twice, either"
    goes_on(scene, sink)


@pytest.mark.parametrize("sink", ["stream", "batch"])
def test_a_batch_whose_commit_took_effect_is_in_once_when_spark_runs_it_again(
    scene: Scene, sink: str
) -> None:
    """Its coordinator is gone, Spark is told that it failed, and asks another to abort it."""
    run = scene.stream if sink == "stream" else scene.batch
    with pytest.raises(PySparkException, match=LOST):
        killed_at(scene, "told", run)
    assert not (scene.checkpoint / "commits" / "0").exists(), "for Spark it is not done"
    run()
    scene.await_rest()
    assert scene.read("read_committed") == FIRST
    assert scene.read("read_uncommitted") == FIRST, "the second time rows were only counted"
    goes_on(scene, sink)


def goes_on(scene: Scene, sink: str) -> None:
    """A stream copies what comes then; a job that is run again changes nothing."""
    scene.bench.send("new")
    if sink == "stream":
        scene.stream()
        assert scene.read("read_committed") == sorted([*FIRST, "new"])
        return
    with pytest.raises(PySparkException, match=f"with {2 * ROWS} rows and now has {2 * ROWS + 1}"):
        scene.batch()
    assert scene.read("read_committed") == FIRST
