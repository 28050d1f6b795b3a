"""Which requests wait until their batches are opened, and what happens to those that did not."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from support.produce_scene import produce_scene
from support.wire import now_ms

from penstock.core.batch import Codec
from penstock.core.records import build_batch, encode_columns
from penstock.core.topic import TopicConfig
from penstock.errors import ErrorCode, OverloadedError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.batches import batch_to_wire
from penstock_broker.services.opening import OPENED_AT_ONCE_BYTES, Opener, check_opened


def part(topic: str, size_bytes: int, *, key: bytes | None = b"k") -> pb.ProducePartition:
    columns = encode_columns([bytes(size_bytes)], keys=[key], timestamps_ms=now_ms())
    return pb.ProducePartition(
        topic=topic, batch=batch_to_wire(build_batch(columns, codec=Codec.ZSTD))
    )


def request(*parts: pb.ProducePartition) -> pb.ProduceRequest:
    return pb.ProduceRequest(partitions=parts)


async def test_only_large_batches_for_compacted_topics_are_waited_for() -> None:
    large, small = OPENED_AT_ONCE_BYTES, OPENED_AT_ONCE_BYTES // 3
    with ThreadPoolExecutor(1) as executor:
        async with produce_scene() as scene:
            topics = scene.view.topics
            known = topics[scene.view.names["t"]]
            config = TopicConfig.parse({"cleanup.policy": "compact"})
            topics[known.topic_id] = replace(known, config=config)
            opener = Opener(scene.view, executor)
            assert opener.open(request(part("t", small), part("t", small))) is None
            assert opener.open(request(part("far", large), part("unknown", large))) is None
            assert opener.open(request(part("far", large), part("t", small))) is None
            bad = part("t", large, key=None)
            waiting = opener.open(request(part("far", large), part("t", small), bad))
            assert waiting is not None
            opened = await waiting
            assert set(opened) == {1, 2}
            assert opened[1] is None
            problem = opened[2]
            assert problem is not None
            assert problem.code is ErrorCode.INVALID_RECORD
            assert "in the batch for t/0 has no key" in problem.message


def test_a_large_batch_that_was_not_opened_is_sent_again() -> None:
    """Its topic became compacted after the request came."""
    large = part("t", OPENED_AT_ONCE_BYTES)
    with pytest.raises(OverloadedError, match="t became compacted a moment ago, and the batch of"):
        check_opened(large, 0, None)
    assert not check_opened(part("t", 10), 0, None), "it is opened now"
    assert check_opened(large, 0, {0: None})
