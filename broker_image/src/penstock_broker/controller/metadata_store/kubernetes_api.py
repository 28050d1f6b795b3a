"""One request to the API server, with a bound on its time and no guessing about its outcome.

    Api.request ──▶ Answer(status, body)   the API server said so: 2xx, 404, 409, 410 …
                └─▶ StoreUnavailableError  it did not answer, answered 5xx, or refused us

The official client gives what is easy to get wrong: in-cluster configuration with a token that
rotates, kubeconfig with its ways to log in, TLS, proxies. Requests go to its connection pool as
plain JSON, without the model classes. Nothing is repeated here but what was certainly not
carried out: 429 says so, and is obeyed for as long as the request's time allows. urllib3's own
retries are off: a PUT repeated after a lost answer would meet its own success as a conflict.
"""

import json
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

import urllib3
from kubernetes.client import Configuration
from kubernetes.client.rest import RESTClientObject
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config
from yaml import YAMLError

from penstock.errors import ErrorCode, MisuseError
from penstock_broker.controller.metadata_store.interface import StoreUnavailableError

CONNECTIONS_MAX: Final = 10
_READ_BYTES: Final = 256 * 1024
_ANSWERS: Final = frozenset({200, 201, 202, 404, 409, 410})
_TOO_MANY: Final = 429
_RETRY_AFTER_S: Final = 1.0
_KEEPALIVE: Final = (
    # A connection that a firewall or a failed node dropped silently must not cost a timeout.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Bounds of one call, in seconds. `total_s` covers waiting out a 429 and reading the body."""

    connect_s: float = 2.0
    total_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What the API server said; `body` is the object, the list or the Status."""

    status: int
    body: Mapping[str, Any]

    @property
    def message(self) -> str:
        """The Status' own words, for errors."""
        return str(self.body.get("message", ""))

    @property
    def version(self) -> str:
        """`metadata.resourceVersion` of an object."""
        return str(self.body["metadata"]["resourceVersion"])


class Api:
    """May be used by several threads. `close` gives the connections back."""

    def __init__(self, configuration: Configuration, timeouts: Timeouts) -> None:
        configuration.retries = False
        configuration.connection_pool_maxsize = CONNECTIONS_MAX
        configuration.socket_options = list(_KEEPALIVE)
        self.timeouts = timeouts
        self._configuration = configuration
        self._pool = RESTClientObject(configuration).pool_manager

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        timeouts: Timeouts | None = None,
    ) -> Answer:
        """Raises StoreUnavailableError: not answered, 5xx, no permission, 429 for too long.

        Whether a write passed is unknown then.
        """
        limits = timeouts or self.timeouts
        deadline = time.monotonic() + limits.total_s
        url = f"{self._configuration.host}{path}" + (f"?{urlencode(query)}" if query else "")
        what = f"{method} {path}"
        text = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        while True:
            try:
                status, headers, found = self._once(method, url, text, limits, deadline)
            except (urllib3.exceptions.HTTPError, OSError) as error:
                raise StoreUnavailableError(f"{what}: {_reason(error)}") from None
            if status != _TOO_MANY:
                return _judge(what, status, found)
            delay_s = _retry_after(headers)
            if time.monotonic() + delay_s >= deadline:
                raise StoreUnavailableError(
                    f"{what}: the API server is overloaded (429) and asks to wait {delay_s:g} s, "
                    f"which is more than is left of {limits.total_s:g} s"
                )
            time.sleep(delay_s)

    def _once(
        self, method: str, url: str, body: bytes | None, limits: Timeouts, deadline: float
    ) -> tuple[int, Mapping[str, str], bytes]:
        headers = {"Accept": "application/json", "User-Agent": "penstock-controller"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        # Asked for every time: this is where the client reads a rotated token again.
        ways: Any = self._configuration.auth_settings()
        for way in ways.values():
            if way["in"] == "header" and way["value"]:
                headers[way["key"]] = way["value"]
        left_s = max(0.05, deadline - time.monotonic())
        response = self._pool.request(
            method,
            url,
            body=body,
            headers=headers,
            timeout=urllib3.Timeout(connect=min(limits.connect_s, left_s), read=left_s),
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

    def close(self) -> None:
        """Closes idle connections; calls under way end by their own timeouts."""
        self._pool.clear()


def connect(timeouts: Timeouts, kubeconfig: str | None = None) -> Api:
    """The API server of `kubeconfig`; None: of this pod, or else of $KUBECONFIG (~/.kube/config).

    Sends no request. Raises MisuseError when there is no usable configuration.
    """
    configuration = Configuration()
    try:
        if kubeconfig is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
            load_incluster_config(configuration)  # type: ignore[no-untyped-call]
        else:
            load_kube_config(kubeconfig, client_configuration=configuration)  # type: ignore[no-untyped-call]
    except (ConfigException, OSError, ValueError, KeyError, TypeError, YAMLError) as error:
        reason = " ".join(str(error).split())
        raise MisuseError(
            f"--metadata=kubernetes finds no API server: {reason}; run in a pod whose service "
            "account's token is mounted, or set KUBECONFIG",
            ErrorCode.INVALID_CONFIG,
        ) from None
    return Api(configuration, timeouts)


def _read(response: urllib3.BaseHTTPResponse, deadline: float) -> bytes:
    """The whole body; raises TimeoutError of urllib3, also for one that trickles."""
    parts = []
    for part in iter(partial(response.read1, _READ_BYTES), b""):
        parts.append(part)
        if time.monotonic() > deadline:
            raise urllib3.exceptions.TimeoutError("the answer came too slowly")
    return b"".join(parts)


def _judge(what: str, status: int, found: bytes) -> Answer:
    try:
        body = json.loads(found)
    except ValueError:
        body = {"message": found[:200].decode(errors="replace").strip()}
    if not isinstance(body, dict):
        raise StoreUnavailableError(f"{what}: the API server answered {status} with no object")
    answer = Answer(status, body)
    if status not in _ANSWERS:
        raise StoreUnavailableError(
            f"{what}: the API server answered {status}: {answer.message or 'no reason given'}"
        )
    return answer


def _retry_after(headers: Mapping[str, str]) -> float:
    try:
        return max(0.0, float(headers.get("Retry-After", _RETRY_AFTER_S)))
    except ValueError:
        return _RETRY_AFTER_S


def _reason(error: Exception) -> str:
    match error:
        case urllib3.exceptions.NewConnectionError():
            return "the API server cannot be reached"
        case urllib3.exceptions.TimeoutError():
            return "the API server did not answer in time"
        case _:
            return f"the connection to the API server failed: {error}"
