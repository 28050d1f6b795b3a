"""The Kubernetes API as the CLI uses it: kubeconfig, requests, objects as plain dictionaries.

    --kubeconfig, --context ──▶ connect ──▶ KubeApi.get / patch / text ──▶ JSON

Only the `kubernetes` package's knowledge of kubeconfig files, credentials and proxies is used;
its models are not, because objects shown to people are better read as they are. It is imported
here alone, when a command needs it. Every failure is one PenstockError that says what to do.
"""

import importlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from penstock.errors import ClusterError, ErrorCode, MisuseError, UnreachableError

Json = dict[str, Any]

CONNECT_S: Final = 5.0
READ_S: Final = 30.0
PAGE: Final = 500
"""Objects per list request: an API server with thousands of pods answers in pieces."""
TEXT_BYTES_MAX: Final = 20 * 1024 * 1024
"""Of a log, as asked for with limitBytes."""

PENSTOCK: Final = "/apis/penstock.dev/v1alpha1"
IN_CLUSTER_TOKEN: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


@dataclass(frozen=True, slots=True)
class KubeChoice:
    """What the user said about where to look; None = what kubeconfig says."""

    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None


def kubeconfig_is_there(choice: KubeChoice) -> bool:
    """Whether it is worth importing the `kubernetes` package to look."""
    if choice.kubeconfig or choice.context or os.environ.get("KUBECONFIG"):
        return True
    return (Path.home() / ".kube" / "config").exists() or IN_CLUSTER_TOKEN.exists()


def connect(choice: KubeChoice) -> "KubeApi":
    """An API as kubeconfig, or a pod, describes it; nothing is asked yet. Raises MisuseError."""
    try:
        config = importlib.import_module("kubernetes.config")
        client = importlib.import_module("kubernetes.client")
    except ModuleNotFoundError as error:
        raise MisuseError(
            f"this needs the Kubernetes client, and the module {error.name!r} is not installed; "
            "install it with: pip install 'penstock[cli]'"
        ) from error
    configuration = client.Configuration()
    namespace = None
    try:
        if _is_in_cluster(choice):
            config.load_incluster_config(client_configuration=configuration)
            namespace = IN_CLUSTER_TOKEN.with_name("namespace").read_text().strip()
        else:
            config.load_kube_config(
                config_file=choice.kubeconfig,
                context=choice.context,
                client_configuration=configuration,
            )
            namespace = _namespace_of(config, choice)
    except (config.ConfigException, OSError, TypeError, ValueError) as error:
        where = choice.kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
        raise MisuseError(
            f"kubeconfig {where} cannot be used ({error}); check --kubeconfig and --context"
        ) from error
    rest = importlib.import_module("kubernetes.client.rest")
    return KubeApi(
        configuration, rest.RESTClientObject(configuration), choice.namespace or namespace
    )


def _is_in_cluster(choice: KubeChoice) -> bool:
    told = choice.kubeconfig or choice.context or os.environ.get("KUBECONFIG")
    return (
        not told and not (Path.home() / ".kube" / "config").exists() and IN_CLUSTER_TOKEN.exists()
    )


def _namespace_of(config: Any, choice: KubeChoice) -> str | None:
    contexts, active = config.list_kube_config_contexts(config_file=choice.kubeconfig)
    if choice.context is not None:
        active = next(one for one in contexts if one["name"] == choice.context)
    found = active["context"].get("namespace")
    return None if found is None else str(found)


class KubeApi:
    """Requests to one API server. Safe for concurrent use."""

    def __init__(self, configuration: Any, rest: Any, namespace: str | None) -> None:
        self.configuration = configuration
        self.namespace = namespace or "default"
        self._pool = rest.pool_manager

    @property
    def host(self) -> str:
        """https://…"""
        return str(self.configuration.host)

    def authorization(self) -> dict[str, str]:
        """Headers that say who we are; client certificates are the connection's."""
        return {
            entry["key"]: entry["value"]
            for entry in self.configuration.auth_settings().values()
            if entry.get("in") == "header"
        }

    def get(self, path: str, **query: object) -> Json:
        """One object. Raises ClusterError, KubeMissingError if it is not there."""
        return _object(self._request("GET", path, query))

    def find(self, path: str, **query: object) -> Json | None:
        """One object, or None."""
        try:
            return self.get(path, **query)
        except KubeMissingError:
            return None

    def list(self, path: str, **query: object) -> list[Json]:
        """All objects of a collection; the kind stays unset in each, as the server sends them."""
        found: list[Json] = []
        query["limit"] = PAGE
        while True:
            page = self.get(path, **query)
            found += page.get("items") or []
            query["continue"] = (page.get("metadata") or {}).get("continue")
            if not query["continue"]:
                return found

    def text(self, path: str, **query: object) -> str:
        """A log, as it is."""
        query.setdefault("limitBytes", TEXT_BYTES_MAX)
        return self._request("GET", path, query).decode(errors="replace")

    def patch(self, path: str, change: Json) -> Json:
        """A merge patch: null removes."""
        body = json.dumps(change).encode()
        return _object(self._request("PATCH", path, {}, body))

    def _request(
        self, method: str, path: str, query: Mapping[str, object], body: bytes | None = None
    ) -> bytes:
        urllib3 = importlib.import_module("urllib3")
        given = {key: _text(value) for key, value in query.items() if value is not None}
        url = f"{self.host}{path}" + (f"?{urlencode(given)}" if given else "")
        headers = self.authorization()
        if body is not None:
            headers["Content-Type"] = "application/merge-patch+json"
        try:
            answer = self._pool.request(
                method,
                url,
                body=body,
                headers=headers,
                timeout=urllib3.Timeout(connect=CONNECT_S, read=READ_S),
                retries=False,
            )
        except urllib3.exceptions.HTTPError as error:
            reason = str(error).rpartition(": ")[2].strip("()'\"")
            raise UnreachableError(
                f"the Kubernetes API at {self.host} does not answer ({reason}); check the "
                "kubeconfig's context and the network"
            ) from error
        if answer.status >= 400:
            raise _refused(method, path, answer.status, answer.data)
        return bytes(answer.data)


class KubeMissingError(ClusterError):
    """404: no such object, or no such kind of objects."""


class KubeForbiddenError(ClusterError):
    """401 or 403."""


def _refused(method: str, path: str, status: int, data: bytes) -> ClusterError:
    try:
        said = str(json.loads(data)["message"])
    except (ValueError, KeyError, TypeError):
        said = data.decode(errors="replace").strip()[:300] or f"status {status}"
    if status == 404:
        return KubeMissingError(f"Kubernetes: {said}", ErrorCode.INVALID_REQUEST)
    if status in (401, 403):
        return KubeForbiddenError(
            f"Kubernetes: {said}; ask for the right to do so, or use another --context",
            ErrorCode.INVALID_REQUEST,
        )
    return ClusterError(
        f"Kubernetes answered {status} to {method} {path}: {said}", ErrorCode.INVALID_REQUEST
    )


def _object(data: bytes) -> Json:
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ClusterError(
            "the Kubernetes API sent something that is not an object; is a proxy in between?"
        )
    return found


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
