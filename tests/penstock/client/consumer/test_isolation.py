"""What a consumer reads of transactions is said to brokers wherever it asks them."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.transaction_double import TransactionDouble, serving
from support.waiting import wait_until_async

from penstock.client import AsyncAdmin, AsyncConsumer, Consumer, TopicPartition
from penstock.client.model import LATEST
from penstock.errors import MisuseError
from penstock.proto.v1 import broker_pb2 as pb

HERE = TopicPartition("t", 0)


@pytest.fixture
async def double() -> AsyncIterator[TransactionDouble]:
    async with serving() as made:
        yield made


@pytest.mark.parametrize(
    ("settings", "level"),
    [
        ({}, pb.ISOLATION_LEVEL_READ_COMMITTED),
        ({"isolation_level": "read_committed"}, pb.ISOLATION_LEVEL_READ_COMMITTED),
        ({"isolation_level": "read_uncommitted"}, pb.ISOLATION_LEVEL_READ_UNCOMMITTED),
    ],
)
async def test_a_consumer_says_it_when_it_fetches_and_when_it_looks_for_offsets(
    double: TransactionDouble, settings: dict[str, Any], level: int
) -> None:
    async with AsyncConsumer(double.address, fetch_max_wait_ms=10, **settings) as consumer:
        await consumer.assign([HERE])

        async def both() -> bool:
            await consumer.poll(0.2)
            return double.isolations.keys() == {"Fetch", "ListOffsets"}

        await wait_until_async(both, what="it looks for an offset and fetches")
        await consumer.lag()
    assert set.union(*double.isolations.values()) == {level}


async def test_an_admin_sees_the_end_as_readers_do(double: TransactionDouble) -> None:
    async with AsyncAdmin(double.address) as admin:
        await admin.list_offsets({HERE: LATEST})
    assert double.isolations == {"ListOffsets": {pb.ISOLATION_LEVEL_READ_COMMITTED}}


def test_an_isolation_level_that_does_not_exist_is_refused() -> None:
    with pytest.raises(MisuseError, match="isolation_level"):
        Consumer("127.0.0.1:1", isolation_level="serializable")  # type: ignore[arg-type]  # no such level
