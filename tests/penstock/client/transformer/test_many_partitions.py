"""A transaction has at most 2,000 partitions: fewer source records make one that fits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cluster import PATIENT, Cluster
from support.transforming import Running
from support.waiting import wait_until

from penstock.client import (
    AsyncOut,
    AsyncTransformer,
    Consumer,
    Out,
    Producer,
    Record,
    TopicPartition,
)
from penstock.core.transactions import TransactionConfig
from penstock.errors import ClusterError, ErrorCode

MANY = TransactionConfig().participants_max + 100
SLOWLY: dict[str, Any] = {
    "max_records": 10_000,
    "commit_interval_ms": 2_000,
    "transaction_timeout_ms": 30_000,
    "backoff_ms": 0,
}
"""All records of the source would be in one transaction."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    path: Path = tmp_path_factory.mktemp("many")
    with Cluster(path, brokers=1, controller_config=PATIENT) as cluster:
        cluster.create_topic("out", partitions=MANY)
        yield cluster


def source(cluster: Cluster, name: str, count: int) -> str:
    cluster.create_topic(name)
    with Producer(cluster.bootstrap) as producer:
        for number in range(count):
            producer.send(name, b"%d" % number)
        assert producer.close(120) == 0
    return name


@pytest.mark.parametrize("waits", [False, True], ids=["goes on", "waits for its output"])
def test_a_transaction_that_is_too_large_is_done_again_with_fewer_records(
    cluster: Cluster, waits: bool
) -> None:
    name = source(cluster, f"spread-{waits}", MANY)

    def spread(record: Record, out: Out) -> None:
        delivery = out.send("out", name.encode(), partition=record.offset)
        if waits and record.offset >= MANY - 110:
            delivery.result(60)

    one = Running(cluster, name, spread, retries=0, **SLOWLY)
    try:
        with Consumer(cluster.bootstrap) as reader:
            reader.assign([TopicPartition("out", number) for number in range(MANY)])
            found: list[Record] = []

            def all_read() -> bool:
                for batch in reader.poll(0.1):
                    found.extend(each for each in batch.records() if each.value == name.encode())
                return len(found) >= MANY and not any(reader.lag().values())

            wait_until(all_read, what="all output is there", timeout_s=90)
    finally:
        one.stop()
    assert not one.errors
    assert len({record.partition for record in found}) == len(found), "each once"


async def test_one_record_whose_output_is_too_large_ends_it(cluster: Cluster) -> None:
    name = source(cluster, "wide", 5)

    async def widen(_record: Record, out: AsyncOut) -> None:
        for partition in range(MANY):
            await out.send("out", b"x", partition=partition)

    async with AsyncTransformer(cluster.bootstrap, group_id=name, source=name, **SLOWLY) as loop:
        with pytest.raises(ClusterError) as ended:
            await loop.run(widen)
    assert ended.value.code is ErrorCode.TRANSACTION_TOO_LARGE
    assert "has 2000 partitions and groups" in ended.value.message
    assert "it has the output of one source record" in ended.value.message
    assert "\n" not in str(ended.value)
