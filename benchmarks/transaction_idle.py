"""Part of `transactions.py`: what transactions cost that are open and have no traffic."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from benchmarks.common import cpu_seconds, figure, local_cluster, progress
from benchmarks.transaction_stage import BROKERS, Coordinators, Stage, await_whole, leader_of
from penstock.client import Admin, Producer
from penstock.core.batch import BatchFlags
from penstock.core.records import build_batch, encode_columns
from penstock.core.transactions.config import TRANSACTIONS_TOPIC
from penstock.core.types import ProducerId, TopicPartition
from penstock.proto.v1 import broker_pb2
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceStub
from penstock.rpc.batches import batch_to_wire
from penstock.rpc.channel import open_channel
from penstock.rpc.errors import error_from_wire
from penstock_broker.local import LocalCluster

TOPIC = "idle"
TIMEOUT_MS = 900_000
AT_ONCE = 20
LIMIT_PERCENT = 1.0


def idle(stage: Stage) -> None:
    """Opened by the plain protocol: that many producers would measure themselves.

    What was written for them is compacted once, soon after; that is not idling, and told apart.
    """
    sizes = stage.sizes
    with local_cluster(BROKERS) as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic(TOPIC, 1, BROKERS)
            with (
                Producer(cluster.bootstrap, transactional_id="first") as producer,
                producer.transaction() as tx,
            ):
                tx.send(TOPIC, b"x")
            await_whole(admin, TOPIC, TRANSACTIONS_TOPIC)
            alone = _shares(cluster, sizes.idle_s)
            _open(cluster, admin, sizes.open_ids)
            opened = len(admin.partition_transactions(TopicPartition(TOPIC, 0)).open)
        if opened != sizes.open_ids:
            raise SystemExit(f"{opened} transactions are open, {sizes.open_ids} were begun")
        settling, _ = _shares(cluster, sizes.settle_s)
        busiest, together = _shares(cluster, sizes.idle_s)
    figure(
        f"CPU of a broker, {sizes.open_ids:,} transactional ids open without traffic",
        100 * busiest,
        "% of a core",
        "limit",
        LIMIT_PERCENT,
        goal="< 1 %",
    )
    progress(f"all brokers: {together:.2%} of a core, the busiest {busiest:.2%}")
    progress(f"without open transactions: {alone[1]:.2%} of a core, the busiest {alone[0]:.2%}")
    progress(f"in the {sizes.settle_s:g} s after they were opened: the busiest {settling:.2%}")


def _shares(cluster: LocalCluster, seconds: float) -> tuple[float, float]:
    """Of a core: what the busiest broker uses, and all together."""
    pids = [cluster.broker_pid(broker) or 0 for broker in cluster.broker_ids]
    before = [cpu_seconds(pid) for pid in pids]
    time.sleep(seconds)
    after = [cpu_seconds(pid) for pid in pids]
    shares = [(end - start) / seconds for start, end in zip(before, after, strict=True)]
    return max(shares), sum(shares)


def _open(cluster: LocalCluster, admin: Admin, count: int) -> None:
    """One transaction each of so many ids, with one record in it."""
    coordinators = Coordinators(admin)
    leader = leader_of(admin, TOPIC)
    with ExitStack() as held, ThreadPoolExecutor(AT_ONCE) as threads:
        channels = [
            held.enter_context(open_channel(cluster.address(broker)))
            for broker in cluster.broker_ids
        ]
        stubs = [BrokerServiceStub(channel) for channel in channels]

        def open_one(number: int) -> None:
            name = f"idle-{number}"
            init = broker_pb2.InitProducerRequest(
                producer_id=-1,
                transactional_id=name,
                transaction_timeout_ms=TIMEOUT_MS,
                instance_id=str(uuid.uuid4()),
            )
            given = stubs[coordinators.of(name)].InitProducer(init, timeout=30)
            if given.HasField("error"):
                raise error_from_wire(given.error)
            batch = build_batch(
                encode_columns([b"x"], timestamps_ms=time.time_ns() // 1_000_000),
                producer_id=ProducerId(given.producer_id),
                producer_epoch=given.producer_epoch,
                base_sequence=0,
                flags=BatchFlags.TRANSACTIONAL,
            )
            part = broker_pb2.ProducePartition(topic=TOPIC, batch=batch_to_wire(batch))
            request = broker_pb2.ProduceRequest(
                acks=broker_pb2.ACKS_ALL,
                timeout_ms=30_000,
                transactional_id=name,
                partitions=[part],
            )
            (result,) = stubs[leader].Produce(request, timeout=35).results
            if result.HasField("error"):
                raise error_from_wire(result.error)

        list(threads.map(open_one, range(count)))
