"""Watching goes on for as long as the operator runs, whatever the API server answers meanwhile.

The API server is a page of HTTP here: what matters is what Kopf makes of its refusals.
"""

import asyncio
import json
import logging
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast

import kopf
import pytest
import yaml
from aiohttp import web
from support.waiting import wait_until_async

from penstock_operator.handlers import AGAIN_MAX_S, kopf_settings, register
from penstock_operator.main import Settings, read_settings, serve
from penstock_operator.repeated import Repeated
from penstock_operator.workers import Workers

REFUSED: Final = "refused"
ALLOWED: Final = "allowed"
TIMES: Final = 30
NOT_FOUND: Final = {"kind": "Status", "code": 404}
SERVED: Final[Mapping[str, tuple[str, ...]]] = {
    "": ("v1", "pods", "persistentvolumeclaims", "services", "configmaps", "namespaces"),
    "apps": ("v1", "statefulsets", "deployments"),
    "policy": ("v1", "poddisruptionbudgets"),
    "penstock.dev": ("v1alpha1", "clusters", "topics", "consumergroups"),
}


class Server:
    """Answers discovery, lists, watches, and keeps a Lease. Each namespace has a Cluster `flights`,
    which is gone when somebody looks for it."""

    def __init__(
        self, *, refuses: bool = False, has_crds: bool = True, breaks: bool = False
    ) -> None:
        self.refuses, self.has_crds = refuses, has_crds
        self.lists_crds = has_crds
        """Their group is listed: a moment later than they are served."""
        self.lease: dict[str, Any] = {}
        self.holders: list[str] = []
        self.looked_for: set[str] = set()
        self.asked_for_crds = 0
        self.breaks = breaks
        """Watches end with an error that Kopf takes for the end of all."""
        self.reason = "forbidden"
        self.refused: Counter[str] = Counter()
        self.ends = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked_for_crds += request.path in {"/apis", "/apis/penstock.dev/v1alpha1"}
        found = self._discovered(request.path)
        if found is not None:
            return web.json_response(found)
        if f"/namespaces/{REFUSED}/" in request.path and self.refuses:
            plural = request.path.rpartition("/")[2]
            self.refused[plural] += 1
            text = {"kind": "Status", "code": 403, "message": self.reason}
            return web.json_response(text, status=403)
        if "/leases" in request.path:
            return await self._lease(request)
        if request.path.endswith("/clusters/flights"):
            self.looked_for.add(request.path.split("/namespaces/")[1].partition("/")[0])
            return web.json_response(NOT_FOUND, status=404)
        if request.query.get("watch"):
            return await self._watch(request)
        items = [_cluster(request.path)] if request.path.endswith("/clusters") else []
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        if self.breaks and request.path.endswith("/pods"):
            error = {"kind": "Status", "code": 500, "message": "etcd: the store was opened again"}
            await stream.write(json.dumps({"type": "ERROR", "object": error}).encode() + b"\n")
        await self.ends.wait()
        return stream

    async def _lease(self, request: web.Request) -> web.Response:
        if request.method == "GET":
            return web.json_response(self.lease or NOT_FOUND, status=200 if self.lease else 404)
        body = await request.json()
        self.holders.append(body["spec"].get("holderIdentity", ""))
        made = {"uid": "lease", "resourceVersion": "1"}
        made["creationTimestamp"] = "2026-01-01T00:00:00Z"
        self.lease = {**body, "metadata": {**body["metadata"], **made}}
        return web.json_response(self.lease)

    @property
    def _served(self) -> Mapping[str, tuple[str, ...]]:
        return {name: it for name, it in SERVED.items() if self.has_crds or name != "penstock.dev"}

    def _discovered(self, path: str) -> dict[str, Any] | None:
        if path == "/api":
            return {"versions": ["v1"]}
        if path == "/apis":
            listed = [name for name in self._served if self.lists_crds or name != "penstock.dev"]
            return {"groups": [_group(name) for name in listed if name]}
        for name, (version, *plurals) in self._served.items():
            if path == (f"/apis/{name}/{version}" if name else f"/api/{version}"):
                return {"resources": [_resource(plural) for plural in plurals]}
        return None


def _group(name: str) -> dict[str, Any]:
    version = {"groupVersion": f"{name}/{SERVED[name][0]}", "version": SERVED[name][0]}
    return {"name": name, "versions": [version], "preferredVersion": version}


def _resource(plural: str) -> dict[str, Any]:
    kind = plural.removesuffix("s").capitalize()
    verbs = ["list", "watch", "patch"]
    namespaced = plural != "namespaces"
    return {"name": plural, "kind": kind, "singularName": "", "namespaced": namespaced} | {
        "verbs": verbs
    }


def _cluster(path: str) -> dict[str, Any]:
    namespace = path.split("/namespaces/")[1].partition("/")[0]
    metadata = {"name": "flights", "namespace": namespace, "uid": namespace}
    return {"apiVersion": "penstock.dev/v1alpha1", "kind": "Cluster", "metadata": metadata}


@asynccontextmanager
async def serving(server: Server, path: Path) -> AsyncIterator[str]:
    """The kubeconfig for it."""
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", server.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        config = path / "kubeconfig"
        config.write_text(yaml.safe_dump(_kubeconfig(f"http://127.0.0.1:{runner.addresses[0][1]}")))
        yield str(config)
    finally:
        server.ends.set()
        await runner.cleanup()


class Heard:
    """In the place of `Workers`: the namespaces whose Cluster was heard of."""

    def __init__(self) -> None:
        self.namespaces: set[str] = set()

    def wake(self, namespace: str, _cluster: str, *, topics: bool = False) -> None:
        assert not topics
        self.namespaces.add(namespace)


class Impatient(Iterable[float]):
    """As many pauses as the operator makes, and none of them takes time."""

    def __init__(self, pauses: Iterable[float]) -> None:
        self._pauses = pauses

    def __iter__(self) -> Iterator[float]:
        return (0.0 for _ in self._pauses)


class Lines(logging.Handler):
    """What the operator logs of refusals of Clusters."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals: list[str] = []
        self.addFilter(Repeated())

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "/clusters" in text and "will retry" in text:
            self.refusals.append(text)


@pytest.fixture
def lines() -> Iterator[Lines]:
    made, root = Lines(), logging.getLogger()
    root.addHandler(made)
    yield made
    root.removeHandler(made)


async def test_a_namespace_that_may_not_be_watched_ends_no_other_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    heard, stop, server = Heard(), asyncio.Event(), Server(refuses=True)
    settings = kopf_settings(cluster_wide=False)
    pauses = settings.networking.error_backoffs
    assert isinstance(pauses, Iterable)
    settings.networking.error_backoffs = Impatient(pauses)
    async with serving(server, tmp_path) as config:
        monkeypatch.setenv("KUBECONFIG", config)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(
                kopf.operator(
                    registry=register(cast("Workers", heard), everywhere=False),
                    settings=settings,
                    standalone=True,
                    identity="tests",  # type: ignore[arg-type]  # its NewType is not public
                    namespaces=[REFUSED, ALLOWED],
                    stop_flag=stop,
                )
            )
            try:
                await wait_until_async(
                    lambda: server.refused["clusters"] >= TIMES, what="it asks again and again"
                )
                assert heard.namespaces == {ALLOWED}
                assert len(lines.refusals) == 1, "it is logged once"
                server.reason = "the namespace is gone"
                await wait_until_async(lambda: len(lines.refusals) > 1, what="what changes is, too")
                assert server.reason in lines.refusals[1]
                server.refuses = False  # as when a namespace was deleted and made again
                await wait_until_async(
                    lambda: heard.namespaces == {ALLOWED, REFUSED}, what="both are watched"
                )
            finally:
                stop.set()


def _kubeconfig(url: str) -> Mapping[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": url}}],
        "users": [{"name": "test", "user": {"token": "none"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }


@pytest.mark.parametrize("cluster_wide", [False, True])
def test_what_is_refused_is_asked_for_again_without_end_and_soon(cluster_wide: bool) -> None:
    pauses = kopf_settings(cluster_wide=cluster_wide).networking.error_backoffs
    assert not isinstance(pauses, float | int)
    for _ in range(2):  # of each request
        first = list(islice(pauses, 10_000))
        assert len(first) == 10_000
        assert max(first) == AGAIN_MAX_S


def operator_settings() -> Settings:
    arguments = ["--broker-image=penstock-broker:1.0", f"--namespaces={ALLOWED}"]
    return read_settings([*arguments, "--namespace=home", "--health-listen=127.0.0.1:0"])


async def test_watching_that_failed_hands_the_lease_over_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(breaks=True)
    async with serving(server, tmp_path) as config, asyncio.timeout(60):
        monkeypatch.setenv("KUBECONFIG", config)
        assert await serve(operator_settings()) == 1
    assert server.holders[0] != ""
    assert server.holders[-1] == "", "nobody has to wait until it expires"


async def test_custom_resources_that_come_later_than_the_operator_are_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_operator.main.CRDS_AGAIN_S", 0.01)
    server = Server(has_crds=False)
    async with serving(server, tmp_path) as config, asyncio.TaskGroup() as tasks:
        monkeypatch.setenv("KUBECONFIG", config)
        running = tasks.create_task(serve(operator_settings()))
        await wait_until_async(lambda: server.asked_for_crds > 3, what="it looks for them")
        server.has_crds, asked = True, server.asked_for_crds
        await wait_until_async(lambda: server.asked_for_crds > asked + 3, what="it looks again")
        server.lists_crds = True
        await wait_until_async(lambda: server.looked_for == {ALLOWED}, what="it reconciles")
        os.kill(os.getpid(), signal.SIGTERM)
        assert await running == 0


def test_a_line_that_cannot_be_formatted_is_no_error_of_who_logs_it() -> None:
    record = logging.LogRecord("kopf", logging.INFO, "", 0, "%d of %s", ("a",), None)
    assert Repeated().filter(record)
