"""The API server by kind and name, for the event loop of the operator.

    await kube.apply(object)      server-side apply as `penstock-operator`, taking fields back

Requests are those of `penstock.kubernetes.api`. They block, so they run in threads, of which no
Cluster takes more than its share. All methods raise KubernetesError.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Final, TypeVar

from penstock.kubernetes.api import Api, Timeouts
from penstock.kubernetes.errors import KubernetesError
from penstock.kubernetes.resources import RESOURCES, path_of
from penstock_operator.model import Object
from penstock_operator.names import FIELD_MANAGER

TIMEOUTS: Final = Timeouts(connect_s=3.0, total_s=15.0)
OF_ALL: Final = frozenset({0, 401, 429, 502, 503, 504})
"""HTTP statuses that say something of the API server or of us, not of one object; 0: no answer."""
_THREADS: Final = 64
OF_ONE: Final = 8
"""Requests at a time of one Cluster: those that hang, as by a webhook of its namespace, leave the
other threads to other Clusters."""
_Answer = TypeVar("_Answer")
_slots: ContextVar[asyncio.Semaphore | None] = ContextVar("slots", default=None)


def limit_requests() -> None:
    """From now on, the running task and those that it begins have OF_ONE requests at a time."""
    _slots.set(asyncio.Semaphore(OF_ONE))


class Kube:
    """May be shared by all tasks of an event loop. Owns `api`; `close` it at the end."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="kube")

    @property
    def calls(self) -> int:
        """Requests so far, including those for the Lease."""
        return self._api.calls

    @property
    def writes(self) -> int:
        """Those of them that may change something."""
        return self._api.writes

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._api.close()

    # ── Reading ───────────────────────────────────────────────────────────────────────────

    async def get(self, kind: str, namespace: str | None, name: str) -> Object | None:
        """None if it does not exist."""
        return await self._run(partial(self._api.find, path_of(kind, namespace, name)))

    async def get_scale(self, kind: str, namespace: str, name: str) -> Object | None:
        """The scale subresource; None if there is no such object."""
        return await self._run(partial(self._api.find, path_of(kind, namespace, name) + "/scale"))

    async def events(self, namespace: str, kind: str, name: str) -> list[Object]:
        """The Events about one object that there are still, in no order."""
        about = f"regarding.kind={kind},regarding.name={name}"
        ask = partial(self._api.list, path_of("Event", namespace), fieldSelector=about)
        return await self._run(ask)

    async def list(self, kind: str, namespace: str | None, selector: str = "") -> list[Object]:
        """All objects, from one consistent read, each with its kind, which lists leave out."""
        ask = partial(self._api.list, path_of(kind, namespace), labelSelector=selector or None)
        served = {"kind": kind, "apiVersion": RESOURCES[kind][0].lstrip("/").partition("/")[2]}
        return [served | each for each in await self._run(ask)]

    async def served(self, version: str) -> frozenset[str]:
        """The kinds of resources (plural) of a group's version, as `penstock.dev/v1alpha1`; none
        before the group is listed, too: that comes later, and is where Kopf looks."""
        listed = await self._run(partial(self._api.find, "/apis"))
        groups = {each["name"] for each in (listed or {}).get("groups") or ()}
        if version.partition("/")[0] not in groups:
            return frozenset()
        found = await self._run(partial(self._api.find, f"/apis/{version}"))
        return frozenset(each["name"] for each in (found or {}).get("resources") or ())

    # ── Writing ───────────────────────────────────────────────────────────────────────────

    async def apply(self, wanted: Object) -> Object:
        """Server-side apply; fields that others changed become ours again."""
        metadata = wanted["metadata"]
        where = path_of(wanted["kind"], metadata["namespace"], metadata["name"])
        return await self._run(partial(self._api.apply, where, wanted, FIELD_MANAGER))

    async def create(self, kind: str, namespace: str, body: Object) -> Object:
        where = path_of(kind, namespace)
        return await self._run(partial(self._api.request, "POST", where, body=body))

    async def request_token(self, namespace: str, account: str, body: Object) -> Object:
        """A token of a ServiceAccount, by a TokenRequest."""
        where = path_of("ServiceAccount", namespace, account) + "/token"
        return await self._run(partial(self._api.request, "POST", where, body=body))

    async def merge(
        self, kind: str, namespace: str, name: str, body: Object, *, status: bool = False
    ) -> Object:
        """A JSON merge patch of the object, or of its status."""
        where = path_of(kind, namespace, name) + ("/status" if status else "")
        return await self._merge(where, body)

    async def set_scale(
        self, kind: str, namespace: str, name: str, replicas: int, *, version: str
    ) -> None:
        """Through the scale subresource; refused (409) if the object is no longer at `version`, so
        that a person who scales at the same time wins."""
        body: Object = {"metadata": {"resourceVersion": version}, "spec": {"replicas": replicas}}
        where = path_of(kind, namespace, name) + "/scale"
        await self._merge(where, body)

    async def delete(
        self,
        kind: str,
        namespace: str,
        name: str,
        uid: str,
        *,
        orphan: bool = False,
        version: str = "",
    ) -> bool:
        """Deletes exactly the object with this uid, if it still has this resourceVersion, when one
        is given; False if there is no such object any longer."""
        is_meant = {"uid": uid, **({"resourceVersion": version} if version else {})}
        body: Object = {
            "preconditions": is_meant,
            "propagationPolicy": "Orphan" if orphan else "Background",
        }
        where = path_of(kind, namespace, name)
        try:
            await self._run(partial(self._api.request, "DELETE", where, body=body))
        except KubernetesError as error:
            if error.is_missing or error.is_conflict:
                return False
            raise
        return True

    # ── Inside ────────────────────────────────────────────────────────────────────────────

    async def _merge(self, where: str, body: Object) -> Object:
        return await self._run(partial(self._api.merge, where, body, fieldManager=FIELD_MANAGER))

    async def _run(self, call: Callable[[], _Answer]) -> _Answer:
        async with _slots.get() or nullcontext():
            return await asyncio.get_running_loop().run_in_executor(self._executor, call)
