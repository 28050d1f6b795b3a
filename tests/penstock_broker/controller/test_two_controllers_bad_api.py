"""Two controllers, one API server on a bad day: what must hold of everything that was stored.

    controllers ──(faults)──▶ ConfigMaps ──watch──▶ History ──▶ judged at the end
        └─ what each was told is durable ─────────────┘

I21: for one version of a document two controllers are never told different texts; the controller
epoch never goes back; a document's metadata version only grows; what was confirmed is there.
"""

import json
import random
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import urllib3
from support.api_proxy import ApiProxy, Kind, document_lists, documents, leases
from support.apiserver import ApiServer
from support.kubernetes_store import QUICK, open_store
from support.sessions import Broker, running
from support.waiting import wait_until, wait_until_async
from urllib3.connection import HTTPConnection

from penstock.core.control import ControlConfig
from penstock.errors import ErrorCode
from penstock.proto.v1 import admin_pb2
from penstock.proto.v1.admin_pb2_grpc import AdminServiceStub
from penstock.rpc.channel import open_aio_channel
from penstock_broker.controller.metadata_store.interface import BlockingStore, Change, Put
from penstock_broker.controller.metadata_store.kubernetes_objects import ClusterObjects

if TYPE_CHECKING:
    from .conftest import Run

CONFIG = ControlConfig(heartbeat_interval_ms=100, session_timeout_ms=1_800)
FAULTS: list[tuple[Kind, dict[str, Any]]] = [
    (Kind.STATUS, {"status": 409}),
    (Kind.STATUS, {"status": 500}),
    (Kind.STATUS, {"status": 503, "retry_after_s": 0.1}),
    (Kind.STATUS, {"status": 429, "retry_after_s": 0.1}),
    (Kind.RESET, {}),
    (Kind.ANSWER_LOST, {}),
    (Kind.UNANSWERED, {"seconds": 2.5}),
    (Kind.SLOW, {"seconds": 0.5}),
]
STEPS = 12


class History:
    """Every state of every document, in the order of the store, by a watch that meets no fault."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self.states: list[tuple[str, str, str, str]] = []  # (what, key, version, text)
        self._pool = urllib3.PoolManager(ca_certs=str(server.directory / "ca.crt"))
        query = "watch=1&labelSelector=penstock.dev/metadata"
        self._stream = self._pool.request(
            "GET",
            f"{server.url}/api/v1/namespaces/{namespace}/configmaps?{query}",
            headers={"Authorization": "Bearer admin-of-the-tests"},
            preload_content=False,
            timeout=600.0,
        )
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        rest = b""
        with suppress(urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError):
            for part in iter(lambda: self._stream.read1(65_536), b""):
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    item = event["object"]
                    self.states.append(
                        (
                            event["type"],
                            item["data"]["key"],
                            item["metadata"]["resourceVersion"],
                            item["data"]["document"],
                        )
                    )

    def close(self) -> None:
        # Closing would wait for the thread, which waits for the next change.
        connection = self._stream.connection
        assert isinstance(connection, HTTPConnection)
        assert connection.sock is not None
        connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._stream.close()
        self._pool.clear()


class Recording:
    """A store, and all it confirmed."""

    def __init__(self, store: BlockingStore, confirmed: list[tuple[str, str, str]]) -> None:
        self._store = store
        self._confirmed = confirmed

    def write(self, stages: Sequence[Sequence[Change]]) -> Mapping[str, str]:
        versions = self._store.write(stages)
        for stage in stages:
            for change in stage:
                if isinstance(change, Put):
                    self._confirmed.append((change.key, versions[change.key], change.text))
        return versions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.fixture
def proxies(api_server: ApiServer) -> Iterator[list[ApiProxy]]:
    made = [ApiProxy(api_server), ApiProxy(api_server)]
    yield made
    for proxy in made:
        proxy.close()


async def create(addresses: list[str], topic: str, timeout_s: float = 10.0) -> bool:
    """True if a controller said that it exists now; also if an unanswered call has made it."""
    new = admin_pb2.NewTopic(topic=topic, partitions=2, replication_factor=2)
    request = admin_pb2.CreateTopicsRequest(topics=[new])
    for address in addresses:
        async with open_aio_channel(address) as channel:
            with suppress(grpc.aio.AioRpcError):
                answer = await AdminServiceStub(channel).CreateTopics(request, timeout=timeout_s)
                error = answer.results[0].error
                if ErrorCode(error.code) in {
                    ErrorCode.UNSPECIFIED,
                    ErrorCode.TOPIC_ALREADY_EXISTS,
                }:
                    return True
    return False


@asynccontextmanager
async def two_controllers(
    run: "Run", stores: list[Any], proxies: list[ApiProxy]
) -> AsyncIterator[list[Any]]:
    async with (
        run(stores[0], CONFIG, wait=True) as first,
        run(stores[1], CONFIG, wait=False) as second,
    ):
        try:
            yield [first, second]
        finally:
            for proxy in proxies:
                proxy.heal()


async def test_what_is_stored_and_told_stays_consistent(
    run: "Run", api_server: ApiServer, proxies: list[ApiProxy], tmp_path: Path, rng: random.Random
) -> None:
    namespace = api_server.namespace()
    history = History(api_server, namespace)
    confirmed: list[tuple[str, str, str]] = []
    objects = ClusterObjects("flights", namespace)
    stores = [
        Recording(
            open_store(proxy.kubeconfig(tmp_path / f"{i}.kubeconfig"), objects, timeouts=QUICK),
            confirmed,
        )
        for i, proxy in enumerate(proxies)
    ]
    told: list[str] = []
    try:
        async with two_controllers(run, stores, proxies) as controllers:
            addresses = [controller.address for controller in controllers]
            brokers = [Broker(number, addresses) for number in range(3)]
            async with running(*brokers):
                await wait_until_async(
                    lambda: all(broker.session.connected for broker in brokers), what="sessions"
                )
                for step in range(STEPS):
                    await trouble(controllers, proxies, rng, step)
                    if await create(addresses, f"topic-{step}"):
                        told.append(f"topic/topic-{step}")
                for proxy in proxies:
                    proxy.heal()
                await wait_until_async(
                    lambda: all(broker.session.connected for broker in brokers), what="sessions"
                )
                await wait_until_async(
                    lambda: create(addresses, "last", 120.0), what="the cluster works again"
                )
                told.append("topic/last")
        wanted = [(key, version, text) for key, version, text in confirmed]
        wait_until(
            lambda: {state[1:] for state in history.states} >= set(wanted),
            what="all that was confirmed is in the history of the store, word by word",
        )
    finally:
        history.close()
        for store in stores:
            store.close()
    judge(history.states, confirmed, told)


async def trouble(
    controllers: list[Any], proxies: list[ApiProxy], rng: random.Random, step: int
) -> None:
    """Twice the active controller is cut off until the other took over; else a fault, or quiet."""
    if step in {STEPS // 3, 2 * STEPS // 3}:
        for proxy in proxies:
            proxy.heal()
        await wait_until_async(
            lambda: any(one.runtime.active for one in controllers), what="one is active"
        )
        active = next(i for i, one in enumerate(controllers) if one.runtime.active)
        proxies[active].cut()
        await wait_until_async(lambda: controllers[1 - active].runtime.active, what="a take-over")
        proxies[active].heal()
    elif rng.random() > 0.25:
        kind, options = rng.choice(FAULTS)
        fits = rng.choice([documents, documents, document_lists, leases])
        rng.choice(proxies).plant(kind, fits=fits, times=rng.choice([1, 1, 2, 3]), **options)


def judge(
    states: list[tuple[str, str, str, str]],
    confirmed: list[tuple[str, str, str]],
    told: list[str],
) -> None:
    by_version: dict[tuple[str, str], str] = {}
    for key, version, text in confirmed:
        assert by_version.setdefault((key, version), text) == text, (
            f"{key} was confirmed twice for version {version}, with different texts"
        )
    assert len(confirmed) == len(by_version), "one version was confirmed to two writers"
    newest: dict[str, int] = {}
    epoch = 0
    stored = set()
    for what, key, _, text in states:
        if what == "DELETED":
            stored.discard(key)
            continue
        stored.add(key)
        document = json.loads(text)
        assert document["metadata_version"] > newest.get(key, 0), f"{key} went back: {text}"
        newest[key] = document["metadata_version"]
        if key == "cluster":
            assert document["controller_epoch"] >= epoch, "the controller epoch went back"
            epoch = document["controller_epoch"]
    assert epoch >= 3, "no other controller took over: the run proved too little"
    assert stored >= set(told), f"confirmed and not there: {set(told) - stored}"
    assert len(told) > STEPS // 3, "too few topics came about"
