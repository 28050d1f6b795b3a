"""What is counted in a request before it is parsed."""

from importlib import import_module
from uuid import UUID

import pytest
from google.protobuf.descriptor import FileDescriptor
from hypothesis import given
from hypothesis import strategies as st

from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1 import group_pb2
from penstock.rpc.channel import MAX_MESSAGE_BYTES
from penstock_broker.serving.request_limits import (
    REQUEST_LIMITS,
    RequestCheck,
    count_fields,
    shape_of,
)

FILES = (
    "admin",
    "broker",
    "controller",
    "enrolment",
    "group",
    "journal",
    "replication",
    "transaction",
    "transaction_peer",
)
PRODUCE = shape_of(pb.ProduceRequest.DESCRIPTOR)


def test_every_method_has_a_limit_and_no_other() -> None:
    methods = set()
    for name in FILES:
        file: FileDescriptor = import_module(f"penstock.proto.v1.{name}_pb2").DESCRIPTOR
        for service in file.services_by_name.values():
            for method in service.methods:
                methods.add(f"{service.name}.{method.name}")
                RequestCheck(f"/penstock.proto.v1.{service.name}/{method.name}")
    assert methods == set(REQUEST_LIMITS)


def test_only_what_carries_batches_or_documents_may_be_as_large_as_a_connection_allows() -> None:
    large = {name for name, limit in REQUEST_LIMITS.items() if limit.size_bytes > 8 * 2**20}
    assert large == {
        "BrokerService.Produce",
        "BrokerService.ProduceStream",
        "JournalService.KeepJournal",
    }
    assert all(limit.size_bytes <= MAX_MESSAGE_BYTES for limit in REQUEST_LIMITS.values())


def test_a_produced_partition_is_one_field_whatever_is_in_its_batch() -> None:
    request = pb.ProduceRequest(correlation_id=1, transactional_id="x")
    for number in range(300):
        part = request.partitions.add(topic="t", partition=number, leader_epoch=5)
        part.batch.payload = b"x" * number
    assert count_fields(request.SerializeToString(), PRODUCE, 1_000) == 302
    assert count_fields(request.SerializeToString(), PRODUCE, 7) == 8


def test_fields_of_inner_lists_count() -> None:
    hello = group_pb2.MemberHello(group_id="g")
    hello.subscription.topics.extend(["a", "b", "c"])
    hello.owned.add(topic_id="x", partitions=[1, 2, 3])
    body = group_pb2.JoinRequest(hello=hello).SerializeToString()
    # the hello, its id, its subscription with three topics, and a topic that it owns
    assert count_fields(body, shape_of(group_pb2.JoinRequest.DESCRIPTOR), 100) == 7


def test_20_000_topics_of_one_partition_are_asked_for_and_owned() -> None:
    names = [f"{number:0249}" for number in range(20_000)]
    metadata = pb.MetadataRequest(topics=names).SerializeToString()
    RequestCheck("/penstock.proto.v1.BrokerService/Metadata")(metadata)
    owned = [
        group_pb2.TopicPartitions(topic_id=str(UUID(int=number)), topic=name, partitions=[0])
        for number, name in enumerate(names)
    ]
    beat = group_pb2.MemberHeartbeat(owned=group_pb2.OwnedPartitions(partitions=owned))
    join = group_pb2.JoinRequest(heartbeat=beat).SerializeToString()
    RequestCheck("/penstock.proto.v1.GroupService/Join")(join)


def test_messages_that_replace_each_other_count() -> None:
    switching = b"\x1a\x08" + b"\x2a\x00\x32\x00" * 2
    shape = shape_of(pb.ListOffsetsRequest.DESCRIPTOR)
    assert count_fields(switching, shape, 100) == 5


@pytest.mark.parametrize(
    "body",
    [
        b"\x32",
        b"\x32\x05x",
        b"\x32\xff\xff\xff\xff\x7f",
        b"\x08\x80",
        b"\x0d\x00",
        b"\x0b",
        b"\xff" * 11,
    ],
    ids=repr,
)
def test_what_is_no_message_is_noticed(body: bytes) -> None:
    with pytest.raises((IndexError, ValueError)):
        count_fields(body, PRODUCE, 100)


@given(st.binary(max_size=200))
def test_any_bytes_are_counted_or_refused(body: bytes) -> None:
    try:
        assert 0 <= count_fields(body, shape_of(group_pb2.JoinRequest.DESCRIPTOR), 50) <= 51
    except (IndexError, ValueError):
        return
