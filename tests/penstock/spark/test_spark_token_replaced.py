"""The token that a running query shows ends, and the kubelet has put another in its place."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from support.cluster import PATIENT
from support.secured import Secured, secured_cluster
from support.tokens import now_s
from support.user_certificates import replace
from support.waiting import wait_until

from penstock.client import Admin, Consumer, Producer, TopicPartition
from penstock.errors import ErrorCode, PenstockError
from penstock_broker.serving.callers import LEEWAY_S

pytestmark = pytest.mark.spark
SOURCE, TARGET = "orders", "copy"
LIFE_S = 30
"""For how long brokers take a token."""
RENEW_AFTER = 0.8
"""The part of a token's life after which a kubelet has the next one in its place."""
ENDED = {ErrorCode.UNAUTHENTICATED, ErrorCode.CREDENTIALS_EXPIRED}


class Kubelet:
    """The file of a token, which is replaced before the token ends if `look` is called often."""

    def __init__(self, secured: Secured) -> None:
        self._issuer = secured.issuer
        self.path = secured.path / "mounted"
        self._replace()

    def look(self) -> None:
        if now_s() >= self._due_s:
            self._replace()

    def _replace(self) -> None:
        # Brokers allow for clocks that differ: what they take for so long has ended for its owner.
        issued = int(now_s() - LEEWAY_S)
        token = self._issuer.token("etl/root", iat=issued, nbf=issued, exp=issued + LIFE_S)
        replace(self.path, token.encode())
        self._due_s = now_s() + RENEW_AFTER * LIFE_S


@pytest.fixture
def secured(spark: SparkSession, tmp_path: Path) -> Iterator[Secured]:
    assert spark.version, "it has started: tokens do not last long"
    with secured_cluster(tmp_path / "secured", brokers=1, controller_config=PATIENT) as made:
        with made.admin() as admin:
            for topic in (SOURCE, TARGET):
                admin.create_topic(topic, 1, 1)
        yield made


@pytest.fixture
def kubelet(secured: Secured) -> Kubelet:
    return Kubelet(secured)


def never_again() -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For mapInArrow: a task that has failed once fails the query. Spark's workers get it by value:
    they have no tests to import."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415 - of the worker

        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() > 0:
            raise ValueError("a task has failed before")
        yield from batches

    return pass_on


@pytest.fixture
def query(
    spark: SparkSession, secured: Secured, kubelet: Kubelet, tmp_path: Path
) -> Iterator[StreamingQuery]:
    """Copies exactly once, and shows the kubelet's tokens."""
    settings = {
        "penstock.bootstrap.servers": secured.cluster.bootstrap,
        "penstock.ca.file": str(secured.options()["ca_file"]),
        "penstock.token.file": str(kubelet.path),
    }
    source = {**settings, "subscribe": SOURCE, "startingOffsets": "earliest"}
    rows = spark.readStream.format("penstock").options(**source).load().select("value")
    writing = rows.mapInArrow(never_again(), "value binary").writeStream.format("penstock")
    sink = {"topic": TARGET, "delivery": "exactly-once", "checkpointLocation": str(tmp_path / "c")}
    writing = writing.options(**settings, **sink).trigger(processingTime="200 milliseconds")
    running = writing.start()
    yield running
    running.stop()


def test_a_query_goes_on_with_the_token_that_has_replaced_the_one_it_began_with(
    secured: Secured, kubelet: Kubelet, query: StreamingQuery
) -> None:
    """Its workers and their connections stay; no task and no batch fails."""
    copied: list[bytes | None] = []
    own = secured.options("tester")
    own["token_file"].write_text(secured.issuer.token("etl/root"))
    bootstrap = secured.cluster.bootstrap
    with Producer(bootstrap, **own) as producer, Consumer(bootstrap, **own) as consumer:
        consumer.assign([TopicPartition(TARGET, 0)])
        consumer.seek_to_beginning([TopicPartition(TARGET, 0)])

        def goes_on(value: bytes) -> None:
            producer.send(SOURCE, value).result(60)

            def came() -> bool:
                kubelet.look()
                assert query.isActive, query.exception()
                for batch in consumer.poll(0.1):
                    copied.extend(batch.values())
                return copied[-1:] == [value]

            wait_until(came, what=f"the query copies {value!r}", timeout_s=120)

        goes_on(b"with the first")
        shown = secured.path / "shown"
        shown.write_bytes(kubelet.path.read_bytes())
        with Admin(bootstrap, **{**own, "token_file": shown}) as admin:

            def has_ended() -> bool:
                kubelet.look()
                assert query.isActive, query.exception()
                try:
                    admin.list_topics()
                except PenstockError as error:
                    if error.code not in ENDED:
                        raise
                    return True
                return False

            wait_until(has_ended, what="the token ends", timeout_s=2 * LIFE_S)
        assert kubelet.path.read_bytes() != shown.read_bytes()
        goes_on(b"with another")
        goes_on(b"and again")
    assert copied == [b"with the first", b"with another", b"and again"]
    assert query.exception() is None
