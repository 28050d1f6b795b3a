"""Peak memory of a broker among greedy clients: subscribers that take nothing of what they asked
for, producers of large records that never pause, readers of everything at once.

The limit is the one that the operator gives a broker's pod: beyond it the kernel would end it.
"""

import argparse
import asyncio
import os
import re
import time
from pathlib import Path

import grpc

from benchmarks.common import figure, local_cluster, progress
from penstock.client import Acks, Admin, AsyncConsumer, AsyncProducer, TopicPartition
from penstock.client.model import ClusterDescription
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceStub
from penstock_broker.local import LocalCluster

BROKERS = (0, 1, 2)
PARTITIONS = 12
TOPIC = "greed"
POD_LIMIT_MB = 1536 * 1024 * 1024 / 1e6
RECORD = os.urandom(500_000)
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]


def peak_mb(cluster: LocalCluster) -> float:
    """The most memory that any of the brokers ever had resident."""
    found = []
    for broker in BROKERS:
        status = Path(f"/proc/{cluster.broker_pid(broker) or 0}/status").read_text()
        match = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert match is not None
        found.append(int(match[1]) * 1024 / 1e6)
    return max(found)


async def take_nothing(address: str, cluster_id: str, over: asyncio.Event) -> None:
    """Subscribes to everything with all the credit there is, reads one answer and no more."""
    async with grpc.aio.insecure_channel(address, options=OWN_CONNECTION) as channel:
        call = BrokerServiceStub(channel).Subscribe()
        partitions = [
            pb.FetchPartition(topic=TOPIC, partition=index, max_bytes=1 << 30)
            for index in range(PARTITIONS)
        ]
        wanted = pb.SubscribeRequest(
            cluster_id=cluster_id, subscribe=partitions, credit_bytes=(1 << 32) - 1
        )
        await call.write(wanted)
        await call.read()
        await over.wait()
        call.cancel()


async def produce(bootstrap: str, over: asyncio.Event) -> int:
    """Bytes acknowledged of records that are as large as a topic takes by default, about."""
    done = 0
    async with AsyncProducer(bootstrap, acks=Acks.ALL) as producer:
        while not over.is_set():
            deliveries = [await producer.send(TOPIC, RECORD) for _ in range(20)]
            await producer.flush()
            done += sum(len(RECORD) for one in deliveries if one.result().offset >= 0)
    return done


async def consume(bootstrap: str, over: asyncio.Event) -> int:
    """Bytes read, again and again from the beginning."""
    done = 0
    partitions = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
    async with AsyncConsumer(bootstrap) as consumer:
        await consumer.assign(partitions)
        while not over.is_set():
            await consumer.seek_to_beginning(partitions)
            for _ in range(100):
                done += sum(batch.record_count for batch in await consumer.poll(1.0)) * len(RECORD)
                if over.is_set():
                    break
    return done


async def greed(bootstrap: str, about: ClusterDescription, args: argparse.Namespace) -> None:
    """All of them at once for `args.seconds`."""
    over = asyncio.Event()
    addresses = [f"{broker.host}:{broker.port}" for broker in about.brokers]
    async with asyncio.TaskGroup() as tasks:
        for index in range(args.subscribers):
            address = addresses[index % len(addresses)]
            tasks.create_task(take_nothing(address, about.cluster_id, over))
        producing = [tasks.create_task(produce(bootstrap, over)) for _ in range(args.producers)]
        consuming = [tasks.create_task(consume(bootstrap, over)) for _ in range(args.consumers)]
        await asyncio.sleep(args.seconds)
        over.set()
    written, read = (sum(task.result() for task in each) / 1e6 for each in (producing, consuming))
    progress(f"{written:.0f} MB written, {read:.0f} MB read in {args.seconds:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--subscribers", type=int, default=150)
    parser.add_argument("--producers", type=int, default=16)
    parser.add_argument("--consumers", type=int, default=8)
    args = parser.parse_args()
    began = time.monotonic()
    with local_cluster(len(BROKERS)) as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic(TOPIC, PARTITIONS, 3)
            about = admin.describe_cluster()
        figure("resident memory of a broker before", peak_mb(cluster), "MB")
        asyncio.run(greed(cluster.bootstrap, about, args))
        clients = args.subscribers + args.producers + args.consumers
        name = f"peak resident memory of a broker among {clients} greedy clients"
        figure(name, peak_mb(cluster), "MB", "memory limit of its pod by default", POD_LIMIT_MB)
    progress(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
