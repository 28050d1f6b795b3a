"""What metadata in Kubernetes costs: API calls and time, counted by a proxy before the API server.

Needs etcd and kube-apiserver (see tests/support/apiserver.py). Brokers are sessions without data,
the controllers are the real processes.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from benchmarks.common import figure, progress, resident_bytes
from penstock.core.control.documents import decode_topic
from penstock.proto.v1 import admin_pb2
from penstock.proto.v1.admin_pb2_grpc import AdminServiceStub
from penstock.rpc.channel import open_aio_channel
from penstock_broker.controller.metadata_store.kubernetes_objects import ClusterObjects

sys.path.append(str(Path(__file__).parent.parent / "tests"))

from support.api_proxy import ApiProxy
from support.apiserver import ApiServer, missing
from support.kubernetes_store import open_store
from support.processes import ReservedPort, ServerProcess
from support.sessions import Broker, running
from support.waiting import wait_until_async

TOPIC_PARTITIONS = 100
BROKERS = 3


def controller(path: Path, proxy: ApiProxy, namespace: str, name: str) -> ServerProcess:
    """A started controller process that talks to the API server through `proxy`."""
    port = ReservedPort()
    arguments = ["controller", "--metadata=kubernetes", "--cluster=flights"]
    arguments += [f"--namespace={namespace}", f"--listen={port.address}"]
    process = ServerProcess(name, arguments, path / f"{name}.log", port)
    os.environ["KUBECONFIG"] = str(proxy.kubeconfig(path / f"{name}.kubeconfig"))
    process.start()
    return process


async def create_topics(address: str, partitions: int) -> float:
    """Creates them one call after the other; the seconds it took."""
    began = time.monotonic()
    async with open_aio_channel(address) as channel:
        for number in range(partitions // TOPIC_PARTITIONS):
            topic = admin_pb2.NewTopic(
                topic=f"topic-{number}", partitions=TOPIC_PARTITIONS, replication_factor=BROKERS
            )
            request = admin_pb2.CreateTopicsRequest(topics=[topic])
            answer = await AdminServiceStub(channel).CreateTopics(request, timeout=30.0)
            assert not answer.results[0].HasField("error"), answer
    return time.monotonic() - began


def documents_only(calls: Counter[str]) -> int:
    return sum(count for name, count in calls.items() if "leases" not in name)


async def measure_changes(
    proxy: ApiProxy, active: ServerProcess, partitions: int, rest_s: float
) -> None:
    """Topics, rest, and a broker's death, on one active controller."""
    brokers = [Broker(number, [active.address]) for number in range(BROKERS)]
    async with running(*brokers[:-1]):
        async with running(brokers[-1]):
            await wait_until_async(
                lambda: all(broker.session.connected for broker in brokers), what="sessions"
            )
            proxy.calls.clear()
            progress(f"creating {partitions} partitions")
            took_s = await create_topics(active.address, partitions)
            topics = partitions // TOPIC_PARTITIONS
            figure("API calls per topic created", documents_only(proxy.calls) / topics, "calls")
            figure(
                f"topic with {TOPIC_PARTITIONS} partitions created", 1000 * took_s / topics, "ms"
            )
            await wait_until_async(
                lambda: len(brokers[0].leaders) == partitions, what="all partitions arrive"
            )
            await asyncio.sleep(3.0)
            proxy.calls.clear()
            await asyncio.sleep(rest_s)
            for name, count in sorted(proxy.calls.items()):
                figure(f"{name} at rest, one controller", 60 * count / rest_s, "per minute")
            figure("document calls at rest", documents_only(proxy.calls), "calls")
            proxy.calls.clear()
            began = time.monotonic()
        await wait_until_async(
            lambda: all(leader != BROKERS - 1 for leader, _ in brokers[0].leaders.values()),
            what="no partition is led by the dead broker",
        )
        took_s = time.monotonic() - began
    label = f"broker's death, {partitions:,} partitions"
    calls = documents_only(proxy.calls)
    figure(f"API calls per {label}", calls, "calls", "one per partition", partitions)
    figure(f"time to new leaders after a {label}", took_s, "s")


async def measure_fail_over(active: ServerProcess, standby: ServerProcess) -> None:
    brokers = [Broker(number, [active.address, standby.address]) for number in range(BROKERS)]
    async with running(*brokers):
        await wait_until_async(
            lambda: all(broker.session.connected for broker in brokers), what="sessions"
        )
        epoch = brokers[0].controller_epoch
        began = time.monotonic()
        active.kill()
        await wait_until_async(
            lambda: all(broker.serves(epoch + 1) for broker in brokers), what="the other one"
        )
        figure("controller fail-over after kill -9", time.monotonic() - began, "s", "lease", 6.0)


def measure_load(path: Path, proxy: ApiProxy, namespace: str, partitions: int) -> None:
    store = open_store(proxy.kubeconfig(path / "load"), ClusterObjects("flights", namespace))
    proxy.calls.clear()
    began = time.monotonic()
    found = store.read_all()
    read_s = time.monotonic() - began
    topics = [decode_topic(text.text, key) for key, text in found.items() if key != "cluster"]
    took_s = time.monotonic() - began
    assert sum(len(topic.partitions) for topic in topics) == partitions
    figure(
        f"load of {partitions:,} partitions, decoded", 1000 * took_s, "ms", "read", 1000 * read_s
    )
    figure(f"API calls to load {partitions:,} partitions", documents_only(proxy.calls), "calls")
    store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=5_000)
    parser.add_argument("--seconds", type=float, default=30.0)
    args = parser.parse_args()
    if reason := missing():
        sys.exit(reason)
    with ExitStack() as stack:
        path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        server = ApiServer(path)
        stack.callback(server.stop)
        proxy = ApiProxy(server)
        stack.callback(proxy.close)
        namespace = server.namespace()
        active = controller(path, proxy, namespace, "one")
        stack.callback(active.close)
        asyncio.run(measure_changes(proxy, active, args.partitions, args.seconds))
        figure("resident memory of a controller", resident_bytes(active.pid) / 1e6, "MB")
        measure_load(path, proxy, namespace, args.partitions)
        standby = controller(path, proxy, namespace, "two")
        stack.callback(standby.close)
        asyncio.run(measure_fail_over(active, standby))


if __name__ == "__main__":
    main()
