"""The API server as plain JSON: apply, get, list, patch, delete; every call bounded in time.

    await kube.apply(object)      server-side apply as `penstock-operator`, taking fields back

The official client opens the connections (in-cluster tokens that rotate, kubeconfig, TLS); calls
run in a few threads, because it blocks. A refusal becomes a `KubeError` with the server's words.
A call that was not answered is a KubeError with status 0: it may have been carried out.
"""

import asyncio
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import urlencode

import urllib3
from kubernetes.client import Configuration
from kubernetes.client.rest import RESTClientObject
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config

from penstock_operator.model import Object
from penstock_operator.names import FIELD_MANAGER

_THREADS: Final = 8
_TIMEOUT: Final = urllib3.Timeout(connect=3.0, read=15.0)
_PAGE: Final = 500
_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"
_JSON: Final = "application/json"

RESOURCES: Final = {
    "Cluster": ("apis/penstock.dev/v1alpha1", "clusters"),
    "Topic": ("apis/penstock.dev/v1alpha1", "topics"),
    "ConsumerGroup": ("apis/penstock.dev/v1alpha1", "consumergroups"),
    "ConfigMap": ("api/v1", "configmaps"),
    "Event": ("apis/events.k8s.io/v1", "events"),
    "Node": ("api/v1", "nodes"),
    "PersistentVolumeClaim": ("api/v1", "persistentvolumeclaims"),
    "Pod": ("api/v1", "pods"),
    "Service": ("api/v1", "services"),
    "ServiceAccount": ("api/v1", "serviceaccounts"),
    "Deployment": ("apis/apps/v1", "deployments"),
    "StatefulSet": ("apis/apps/v1", "statefulsets"),
    "Lease": ("apis/coordination.k8s.io/v1", "leases"),
    "NetworkPolicy": ("apis/networking.k8s.io/v1", "networkpolicies"),
    "PodDisruptionBudget": ("apis/policy/v1", "poddisruptionbudgets"),
    "Role": ("apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "StorageClass": ("apis/storage.k8s.io/v1", "storageclasses"),
}
"""Where each kind is served, and under which plural."""


class KubeError(Exception):
    """The API server refused (`status` 4xx, 5xx) or did not answer (0: the outcome is unknown)."""

    def __init__(self, what: str, status: int, message: str) -> None:
        super().__init__(f"{what}: {message}")
        self.status = status

    @property
    def is_conflict(self) -> bool:
        return self.status == 409


class Kube:
    """May be shared by all tasks of an event loop. `close` it at the end."""

    def __init__(self, configuration: Configuration) -> None:
        configuration.retries = False
        configuration.connection_pool_maxsize = _THREADS
        self._configuration = configuration
        self._pool = RESTClientObject(configuration).pool_manager
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="kube")
        self.calls = 0
        self.writes = 0

    @classmethod
    def connect(cls) -> "Kube":
        """In a pod by its account, elsewhere by kubeconfig. Raises ConfigException."""
        configuration = Configuration()
        try:
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except ConfigException:
            load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        return cls(configuration)

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._pool.clear()

    # ── Reading ───────────────────────────────────────────────────────────────────────────

    async def get(self, kind: str, namespace: str | None, name: str) -> Object | None:
        """None if it is not there."""
        try:
            return await self._call("GET", path(kind, namespace, name))
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    async def get_scale(self, kind: str, namespace: str, name: str) -> Object | None:
        """The scale subresource; None if there is no such object."""
        try:
            return await self._call("GET", path(kind, namespace, name) + "/scale")
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    async def list(self, kind: str, namespace: str | None, selector: str = "") -> list[Object]:
        """All objects, from a consistent read, each whole: a listing leaves kinds out."""
        found: list[Object] = []
        query = {"limit": str(_PAGE)} | ({"labelSelector": selector} if selector else {})
        while True:
            page = await self._call("GET", path(kind, namespace), query=query)
            served = {"kind": kind, "apiVersion": RESOURCES[kind][0].partition("/")[2]}
            found += [served | each for each in page["items"]]
            following = page["metadata"].get("continue")
            if not following:
                return found
            query["continue"] = following

    # ── Writing ───────────────────────────────────────────────────────────────────────────

    async def apply(self, wanted: Object) -> Object:
        """Server-side apply; fields that others changed become ours again."""
        metadata = wanted["metadata"]
        where = path(wanted["kind"], metadata["namespace"], metadata["name"])
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._call("PATCH", where, query=query, body=wanted, media=_APPLY)

    async def create(self, kind: str, namespace: str, body: Object) -> Object:
        return await self._call("POST", path(kind, namespace), body=body)

    async def replace(self, kind: str, namespace: str, body: Object) -> Object:
        """A compare-and-swap: `body` carries the resourceVersion it was read with."""
        where = path(kind, namespace, body["metadata"]["name"])
        return await self._call("PUT", where, body=body)

    async def merge(
        self, kind: str, namespace: str, name: str, body: Object, *, status: bool = False
    ) -> Object:
        """A JSON merge patch of the object, or of its status."""
        where = path(kind, namespace, name) + ("/status" if status else "")
        query = {"fieldManager": FIELD_MANAGER}
        return await self._call("PATCH", where, query=query, body=body, media=_MERGE)

    async def set_scale(
        self, kind: str, namespace: str, name: str, replicas: int, *, version: str
    ) -> None:
        """Through the scale subresource; refused (409) if the object is not at `version` any
        more, so that a person who scales at the same time wins."""
        body: Object = {"metadata": {"resourceVersion": version}, "spec": {"replicas": replicas}}
        where = path(kind, namespace, name) + "/scale"
        query = {"fieldManager": FIELD_MANAGER}
        await self._call("PATCH", where, query=query, body=body, media=_MERGE)

    async def delete(
        self, kind: str, namespace: str, name: str, uid: str, *, orphan: bool = False
    ) -> bool:
        """Deletes exactly the object with this uid; False if that one is gone already."""
        body: Object = {
            "preconditions": {"uid": uid},
            "propagationPolicy": "Orphan" if orphan else "Background",
        }
        try:
            await self._call("DELETE", path(kind, namespace, name), body=body)
        except KubeError as error:
            if error.status in {404, 409}:
                return False
            raise
        return True

    # ── Inside ────────────────────────────────────────────────────────────────────────────

    async def _call(
        self,
        method: str,
        where: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        media: str = _JSON,
    ) -> Object:
        self.calls += 1
        self.writes += method != "GET"
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._executor, self._request, method, where, query or {}, body, media
        )

    def _request(
        self, method: str, where: str, query: Mapping[str, str], body: Object | None, media: str
    ) -> Object:
        what = f"{method} {where}"
        url = f"{self._configuration.host}{where}"
        if query:
            url += f"?{urlencode(query)}"
        headers = {"Accept": _JSON, "User-Agent": FIELD_MANAGER}
        if body is not None:
            headers["Content-Type"] = media
        # Asked for every time: this is where the client reads a rotated token again.
        ways: Mapping[str, Any] = self._configuration.auth_settings()
        for way in ways.values():
            if way["in"] == "header" and way["value"]:
                headers[way["key"]] = way["value"]
        text = None if body is None else json.dumps(body).encode()
        try:
            answer = self._pool.request(
                method, url, body=text, headers=headers, timeout=_TIMEOUT, retries=False
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise KubeError(what, 0, f"no answer: {error}") from None
        status, data = answer.status, answer.data
        if not 200 <= status < 300:
            raise KubeError(what, status, _words(data, answer.reason))
        found: Any = json.loads(data)
        assert isinstance(found, dict)
        return found


def path(kind: str, namespace: str | None, name: str | None = None) -> str:
    """The URL path of a kind, of its objects in a namespace, or of one object."""
    base, plural = RESOURCES[kind]
    parts = [base, *(("namespaces", namespace) if namespace else ()), plural]
    return "/" + "/".join([*parts, name] if name else parts)


def _words(body: Any, reason: str | None) -> str:
    """The Status' message."""
    try:
        text = json.loads(body)["message"]
    except (ValueError, TypeError, KeyError):
        return str(reason or body)
    return str(text)
