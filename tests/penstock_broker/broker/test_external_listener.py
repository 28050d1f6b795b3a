"""A broker's second listener: clients outside are told addresses that they can reach."""

from pathlib import Path

import grpc
from support.channels import patient_channel
from support.cluster import Cluster
from support.processes import HOST, reserve_row

from penstock.client import Admin, Consumer, Producer, TopicPartition
from penstock.proto.v1 import transaction_pb2, transaction_peer_pb2
from penstock.proto.v1.transaction_pb2_grpc import TransactionServiceStub
from penstock.proto.v1.transaction_peer_pb2_grpc import TransactionPeerServiceStub


def test_each_listener_names_the_addresses_of_its_callers(tmp_path: Path) -> None:
    row = reserve_row(2)
    base = row[0].port
    cluster = Cluster(tmp_path, brokers=2, start=False)
    for broker_id, broker in cluster.brokers.items():
        broker.arguments += [f"--external-listen={HOST}:{base + broker_id}"]
        broker.arguments += [f"--external-advertise=localhost:{base}"]
    with row[0], row[1], cluster:
        cluster.start()
        with Admin(cluster.bootstrap) as inside, Admin(f"{HOST}:{base}") as outside:
            inner = {f"{b.host}:{b.port}" for b in inside.describe_cluster().brokers}
            outer = {f"{b.host}:{b.port}" for b in outside.describe_cluster().brokers}
            assert inner == set(cluster.bootstrap.split(","))
            assert outer == {f"localhost:{base}", f"localhost:{base + 1}"}
            outside.create_topic("t", 4, 2)
        with Producer(f"{HOST}:{base + 1}") as producer:
            for number in range(100):
                producer.send("t", b"%d" % number, partition=number % 4)
        with Consumer(f"{HOST}:{base}") as consumer:
            parts = [TopicPartition("t", p) for p in range(4)]
            consumer.assign(parts)
            consumer.seek_to_beginning(parts)
            seen = 0
            while seen < 100:
                seen += sum(batch.hi - batch.lo for batch in consumer.poll(timeout_s=5))
        assert seen == 100
        _check_services(cluster.brokers[0].address, f"{HOST}:{base}")


def _check_services(inside: str, outside: str) -> None:
    """What brokers tell each other about transactions nobody outside can say."""
    joins = transaction_peer_pb2.JoinTransactionsRequest()
    ask = transaction_pb2.ListTransactionsRequest()
    for address, code in ((inside, None), (outside, grpc.StatusCode.UNIMPLEMENTED)):
        with patient_channel(address) as channel:
            TransactionServiceStub(channel).ListTransactions(ask, timeout=120)
            try:
                TransactionPeerServiceStub(channel).JoinTransactions(joins, timeout=120)
                answered = None
            except grpc.RpcError as error:
                answered = error.code()
        assert answered is code
