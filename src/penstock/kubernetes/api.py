"""Requests to the API server: bounded in time, without guessing their outcome.

    Api.request ──▶ the object, list or Status of a 2xx answer
                └─▶ KubernetesError, whose `applied` says whether a write may have passed

The official client gives what is easy to get wrong: in-cluster configuration with a token that
rotates, kubeconfig with its ways to log in, TLS, proxies. Requests go to its connection pool as
plain JSON, without the model classes. The only retry is after 429, which says that nothing was
done; it is made for as long as the request's time allows. urllib3's own retries are off: a PUT
repeated after a lost answer would get a conflict with itself.
"""

import json
import math
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

import urllib3
from kubernetes.client import Configuration
from kubernetes.client.rest import RESTClientObject
from kubernetes.config import ConfigException

from penstock.kubernetes.errors import KubernetesError
from penstock.kubernetes.resources import Json

_JSON: Final = "application/json"
_MERGE: Final = "application/merge-patch+json"
_APPLY: Final = "application/apply-patch+yaml"
PAGE: Final = 500
"""Objects per page of a list, unless the caller says otherwise."""
CONNECTIONS_MAX: Final = 64
"""That are kept; requests have a connection each."""
_LIST_ATTEMPTS: Final = 3
_READ_BYTES: Final = 256 * 1024
_TOO_MANY: Final = 429
_GONE: Final = 410
_RETRY_AFTER_S: Final = 1.0
_KEEPALIVE: Final = (
    # A connection that a firewall or a failed node dropped silently must not cost a timeout.
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 5),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 2),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
    (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Bounds of one request, in seconds.

    Attributes:
        connect_s: For the connection.
        total_s: For everything, including waits after 429 and reading the body.
        silence_s: Without receiving anything; None = `total_s`.
    """

    connect_s: float
    total_s: float
    silence_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    query: Mapping[str, object] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    media: str = _JSON
    accept: str = _JSON

    @property
    def what(self) -> str:
        """For messages."""
        return f"{self.method} {self.path}"

    @property
    def target(self) -> str:
        """Path and query, without parameters that are None."""
        given = {key: _text(value) for key, value in self.query.items() if value is not None}
        return f"{self.path}?{urlencode(given)}" if given else self.path

    @property
    def data(self) -> bytes | None:
        return None if self.body is None else json.dumps(self.body, ensure_ascii=False).encode()


class Api:
    """May be used by several threads. `close` gives the connections back.

    Attributes:
        configuration: The official client's, for callers that need a connection of their own.
        timeouts: The default of every request.
        namespace: As given, else the kubeconfig context's or the pod's, else "default".
        calls: Requests so far.
        writes: Requests so far other than GET.
    """

    def __init__(
        self,
        configuration: Configuration,
        timeouts: Timeouts,
        *,
        agent: str,
        namespace: str,
    ) -> None:
        """`agent`: the User-Agent, as the API server's audit log shows it."""
        configuration.retries = False
        configuration.connection_pool_maxsize = CONNECTIONS_MAX
        configuration.socket_options = [
            # Some systems lack some of them.
            (level, getattr(socket, option), value)
            for level, option, value in _KEEPALIVE
            if hasattr(socket, option)
        ]
        self.configuration = configuration
        self.timeouts = timeouts
        self.namespace = namespace
        self.calls = 0
        self.writes = 0
        self._agent = agent
        self._counting = threading.Lock()
        self._pool = RESTClientObject(configuration).pool_manager

    @property
    def host(self) -> str:
        """https://…"""
        return str(self.configuration.host)

    def authorization(self) -> dict[str, str]:
        """Headers with the credentials. Client certificates belong to the connection instead."""
        # Called for every request: this is where the client re-reads a rotated token.
        ways: Mapping[str, Any] = self.configuration.auth_settings()
        return {
            way["key"]: way["value"]
            for way in ways.values()
            if way["in"] == "header" and way["value"]
        }

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: Mapping[str, Any] | None = None,
        timeouts: Timeouts | None = None,
    ) -> Json:
        """The body of a 2xx answer. Raises KubernetesError for anything else."""
        return self._object(_Request(method, path, query or {}, body), timeouts)

    def merge(self, path: str, change: Mapping[str, Any], **query: object) -> Json:
        """A JSON merge patch: null removes a field. The object as it is then."""
        return self._object(_Request("PATCH", path, query, change, _MERGE))

    def apply(self, path: str, wanted: Mapping[str, Any], manager: str) -> Json:
        """Server-side apply; fields that others have changed are `manager`'s again."""
        query = {"fieldManager": manager, "force": True}
        return self._object(_Request("PATCH", path, query, wanted, _APPLY))

    def find(self, path: str, *, timeouts: Timeouts | None = None) -> Json | None:
        """The object, or None if there is none."""
        try:
            return self.request("GET", path, timeouts=timeouts)
        except KubernetesError as error:
            if error.is_missing:
                return None
            raise

    def text(self, path: str, *, timeouts: Timeouts | None = None, **query: object) -> str:
        """The body as text, such as a log."""
        request = _Request("GET", path, query, accept="*/*")
        return self._carry_out(request, timeouts or self.timeouts).decode(errors="replace")

    def _pages(self, path: str, query: dict[str, object], until_s: float) -> list[Json]:
        found: list[Json] = []
        while True:
            request = _Request("GET", path, query)
            left_s = min(self.timeouts.total_s, until_s - time.monotonic())
            answer = self._object(request, replace(self.timeouts, total_s=left_s))
            if not {"items", "metadata"} <= answer.keys():
                raise self._senseless(request, "a list")  # and not an empty one
            found += answer["items"] or []
            query["continue"] = answer["metadata"].get("continue") or None
            if query["continue"] is None:
                return found

    def list(self, path: str, *, total_s: float = math.inf, **query: object) -> list[Json]:
        """All objects of a collection, from one consistent read of the newest state.

        Objects in lists have no `kind`. A list that expires (410) before its last page is read
        starts again. `total_s`: for all pages together; each has its own timeout besides.
        """
        reason, until_s = "", time.monotonic() + total_s
        for _ in range(_LIST_ATTEMPTS):
            try:
                return self._pages(path, {"limit": PAGE, **query}, until_s)
            except KubernetesError as error:
                if error.status != _GONE:
                    raise
                reason = error.message
        times = f"{_LIST_ATTEMPTS} times before it was complete"
        raise KubernetesError(f"the list of {path} ended {times}: {reason}", _GONE)

    def close(self) -> None:
        """Closes idle connections; requests in progress end by their own timeouts."""
        self._pool.clear()

    # ------------------------------------------------------------ inside

    def _object(self, request: _Request, timeouts: Timeouts | None = None) -> Json:
        found = self._carry_out(request, timeouts or self.timeouts)
        try:
            answer = json.loads(found)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self._senseless(request, "an object")
        return answer

    def _senseless(self, request: _Request, wanted: str) -> KubernetesError:
        what = f"answers {request.what} with something other than {wanted}"
        return KubernetesError(
            f"the Kubernetes API at {self.host} {what}; is a proxy in between?", 0
        )

    def _carry_out(self, request: _Request, limits: Timeouts) -> bytes:
        """The body of a 2xx answer. Raises KubernetesError for anything else."""
        with self._counting:
            self.calls += 1
            self.writes += request.method != "GET"
        deadline = time.monotonic() + limits.total_s
        while True:
            try:
                status, headers, found = self._once(request, limits, deadline)
            except (urllib3.exceptions.HTTPError, OSError, ConfigException) as error:
                raise KubernetesError(
                    f"the Kubernetes API at {self.host} does not answer {request.what}: "
                    f"{_reason(error)}; check the network and the configured address",
                    0,
                ) from None
            if 200 <= status < 300:
                return found
            if status != _TOO_MANY:
                raise _refused(request, status, found)
            delay_s = _retry_after(headers)
            if time.monotonic() + delay_s >= deadline:
                raise KubernetesError(
                    f"the Kubernetes API is overloaded (429) and asks to delay {request.what} "
                    f"for {delay_s:g} s, which is more than what is left of {limits.total_s:g} s",
                    status,
                )
            time.sleep(delay_s)

    def _once(
        self, request: _Request, limits: Timeouts, deadline: float
    ) -> tuple[int, Mapping[str, str], bytes]:
        headers = {"Accept": request.accept, "User-Agent": self._agent, **self.authorization()}
        data = request.data
        if data is not None:
            headers["Content-Type"] = request.media
        left_s = max(0.05, deadline - time.monotonic())
        response = self._pool.request(
            request.method,
            f"{self.host}{request.target}",
            body=data,
            headers=headers,
            timeout=urllib3.Timeout(
                connect=min(limits.connect_s, left_s),
                read=left_s if limits.silence_s is None else min(limits.silence_s, left_s),
            ),
            retries=False,
            redirect=False,
            preload_content=False,
        )
        try:
            found = _read(response, deadline)
        except BaseException:
            response.close()  # half an answer: the connection cannot be used again
            raise
        response.release_conn()
        return response.status, response.headers, found


def _read(response: urllib3.BaseHTTPResponse, deadline: float) -> bytes:
    """The whole body; raises TimeoutError of urllib3, also for one that trickles."""
    parts = []
    for part in iter(partial(response.read1, _READ_BYTES), b""):
        parts.append(part)
        if time.monotonic() > deadline:
            raise urllib3.exceptions.TimeoutError("the answer came too slowly")
    return b"".join(parts)


def _refused(request: _Request, status: int, found: bytes) -> KubernetesError:
    """With the message of the Status, or the beginning of whatever was sent instead."""
    try:
        words = str(json.loads(found)["message"])
    except (ValueError, TypeError, KeyError):
        words = found[:300].decode(errors="replace").strip() or "no reason given"
    advice = "; ask for permission to do so" if status in {401, 403} else ""
    return KubernetesError(
        f"the Kubernetes API answered {status} to {request.what}: {words}{advice}", status
    )


def _retry_after(headers: Mapping[str, str]) -> float:
    try:
        return max(0.0, float(headers.get("Retry-After", _RETRY_AFTER_S)))
    except ValueError:
        return _RETRY_AFTER_S


def _reason(error: Exception) -> str:
    match error:
        case urllib3.exceptions.NewConnectionError():
            return "it cannot be reached"
        case urllib3.exceptions.TimeoutError():
            return "no answer came in time"
        case ConfigException():
            return f"the credentials cannot be read: {error}"
        case _:
            return f"the connection failed: {error}"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
