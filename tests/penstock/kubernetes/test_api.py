"""Requests to a real API server through planted faults, and how a configuration is found."""

import datetime
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.config import incluster_config
from support.api_proxy import ApiProxy, Kind, documents
from support.apiserver import ApiServer
from support.waiting import wait_until

from penstock.errors import Applied, MisuseError
from penstock.kubernetes.api import Api, Timeouts
from penstock.kubernetes.connect import connect
from penstock.kubernetes.errors import KubernetesError
from penstock.kubernetes.resources import path_of

PATIENT = Timeouts(connect_s=60.0, total_s=60.0)
QUICK = Timeouts(connect_s=3.0, total_s=3.0)
"""So that a planted silence does not take long."""
LONG_S = 300.0
"""Of planted silences: no request waits for their end."""


def config_map(name: str, text: str = "") -> dict[str, Any]:
    kind = {"apiVersion": "v1", "kind": "ConfigMap"}
    return {**kind, "metadata": {"name": name}, "data": {"text": text}}


def fill(api: Api, namespace: str, count: int) -> str:
    """The path of a collection, in which there are now so many objects."""
    where = path_of("ConfigMap", namespace)
    for index in range(count):
        api.request("POST", where, body=config_map(f"c-{index}"))
    return where


def noting(seen: list[str]) -> Callable[[str, str], bool]:
    """Fits no request, and notes the path of each."""

    def fits(_method: str, path: str) -> bool:
        seen.append(path)
        return False

    return fits


# ---------------------------------------------------------------- one write meets one fault

PASSED, LOST = "new", "old"


class Sleepless:
    """Time in which nobody sleeps, and which has passed all the same."""

    def __init__(self) -> None:
        self._slept_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self._slept_s

    def sleep(self, seconds: float) -> None:
        self._slept_s += seconds


@pytest.mark.parametrize(
    ("kind", "options", "status", "applied", "outcome"),
    [
        (Kind.STATUS, {"status": 409}, 409, Applied.NO, LOST),
        (Kind.STATUS, {"status": 403}, 403, Applied.NO, LOST),
        (Kind.STATUS, {"status": 500}, 500, Applied.MAYBE, LOST),
        (Kind.STATUS, {"status": 503, "retry_after_s": 1}, 503, Applied.MAYBE, LOST),
        (Kind.STATUS, {"status": 429, "retry_after_s": 0.2, "times": 2}, None, None, PASSED),
        (Kind.STATUS, {"status": 429, "times": 2}, None, None, PASSED),
        (Kind.STATUS, {"status": 429, "retry_after_s": 60}, 429, Applied.NO, LOST),
        (Kind.STATUS, {"status": 429, "retry_after_s": 25, "times": None}, 429, Applied.NO, LOST),
        (Kind.STATUS, {"status": 307}, 307, Applied.MAYBE, LOST),
        (Kind.RESET, {}, 0, Applied.MAYBE, LOST),
        (Kind.ANSWER_LOST, {}, 0, Applied.MAYBE, PASSED),
        (Kind.UNANSWERED, {"seconds": LONG_S}, 0, Applied.MAYBE, PASSED),
        (Kind.TRICKLE, {"seconds": LONG_S}, 0, Applied.MAYBE, PASSED),
        (Kind.SLOW, {"seconds": 0.5}, None, None, PASSED),
    ],
)
def test_an_error_says_whether_the_write_may_have_passed_and_only_429_is_retried(
    api: Api,
    proxy: ApiProxy,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    kind: Kind,
    options: dict[str, Any],
    status: int | None,
    applied: Applied | None,
    outcome: str,
) -> None:
    monkeypatch.setattr("penstock.kubernetes.api.time", Sleepless())
    limits = QUICK if kind in {Kind.UNANSWERED, Kind.TRICKLE} else PATIENT
    where = path_of("ConfigMap", namespace, "c")
    api.request("POST", path_of("ConfigMap", namespace), body=config_map("c", "old"))
    proxy.calls.clear()
    fault = proxy.plant(kind, fits=documents, **options)
    began = time.monotonic()
    if status is None:
        api.request("PUT", where, body=config_map("c", "new"), timeouts=limits)
    else:
        with pytest.raises(KubernetesError) as raised:
            api.request("PUT", where, body=config_map("c", "new"), timeouts=limits)
        assert (raised.value.status, raised.value.applied) == (status, applied)
    assert time.monotonic() - began < LONG_S / 2
    assert fault.seen, "the fault was not met"
    if options.get("status") != 429:
        assert proxy.calls == {"PUT configmaps": 1}, "a retry would conflict with itself"
    proxy.heal()
    assert api.request("GET", where)["data"] == {"text": outcome}


def test_silence_ends_a_request_before_its_total_time(api: Api, proxy: ApiProxy) -> None:
    proxy.plant(Kind.UNANSWERED, seconds=LONG_S)
    limits = Timeouts(connect_s=60.0, total_s=LONG_S, silence_s=0.5)
    began = time.monotonic()
    with pytest.raises(KubernetesError, match="no answer came in time"):
        api.text("/api/v1/namespaces/default", timeouts=limits)
    assert time.monotonic() - began < LONG_S / 2

    def only_the_proxys_patience_ends_it() -> bool:
        """A byte every 50 ms is no silence, unless the proxy stalled."""
        proxy.heal()
        proxy.plant(Kind.TRICKLE, seconds=2.0)
        with pytest.raises(KubernetesError) as raised:
            api.text("/api/v1/namespaces/default", timeouts=limits)
        return "the connection failed" in raised.value.message

    wait_until(only_the_proxys_patience_ends_it, what="an answer that trickles is read on")


# ---------------------------------------------------------------- reading


def test_a_list_comes_in_pages_and_whole(api: Api, proxy: ApiProxy, namespace: str) -> None:
    where = fill(api, namespace, 7)
    proxy.calls.clear()
    found = api.list(where, limit=3)
    assert [each["metadata"]["name"] for each in found] == [f"c-{index}" for index in range(7)]
    assert proxy.calls == {"GET configmaps": 3}
    assert api.list(where, fieldSelector="metadata.name=c-1") == [found[1]]
    assert api.list(where, fieldSelector="metadata.name=absent") == []


def test_a_list_that_expires_starts_again(api: Api, proxy: ApiProxy, namespace: str) -> None:
    where = fill(api, namespace, 10)
    proxy.plant(Kind.STATUS, fits=lambda _m, path: "continue=" in path, status=410)
    proxy.calls.clear()
    assert len(api.list(where, limit=3)) == 10
    assert proxy.calls["GET configmaps"] == 2 + 4
    proxy.plant(Kind.STATUS, fits=lambda _m, path: "continue=" in path, status=410, times=None)
    with pytest.raises(KubernetesError, match="ended 3 times before it was complete"):
        api.list(where, limit=3)


@pytest.mark.parametrize("kind", [Kind.RESET, Kind.ANSWER_LOST, Kind.TRICKLE, Kind.UNANSWERED])
def test_a_list_that_cannot_be_read_to_its_end_is_an_error(
    api: Api, open_api: Any, proxy: ApiProxy, namespace: str, kind: Kind
) -> None:
    where = fill(api, namespace, 10)
    proxy.plant(kind, fits=lambda _m, path: "continue=" in path, seconds=LONG_S)
    impatient: Api = open_api(timeouts=QUICK)
    with pytest.raises(KubernetesError):
        impatient.list(where, limit=3)
    proxy.heal()
    assert len(api.list(where, limit=3)) == 10


def test_lists_ask_for_the_newest_state(api: Api, proxy: ApiProxy, namespace: str) -> None:
    seen: list[str] = []
    proxy.plant(Kind.SLOW, fits=noting(seen))
    api.list(path_of("ConfigMap", namespace))
    assert len(seen) == 1
    assert "resourceVersion" not in seen[0], "any resourceVersion allows a stale answer"


def test_a_missing_object_is_none_or_an_error(api: Api, namespace: str) -> None:
    where = path_of("ConfigMap", namespace, "absent")
    assert api.find(where) is None
    with pytest.raises(KubernetesError, match=r'configmaps "absent" not found') as raised:
        api.request("GET", where)
    assert raised.value.is_missing
    with pytest.raises(KubernetesError, match="no-such-place"):
        api.request("POST", path_of("ConfigMap", "no-such-place"), body=config_map("c"))


def test_an_answer_that_is_no_object_is_an_error_unless_text_is_asked_for(api: Api) -> None:
    assert api.text("/readyz") == "ok"
    with pytest.raises(KubernetesError, match="is a proxy in between") as raised:
        api.request("GET", "/readyz")
    assert raised.value.applied is Applied.MAYBE


def test_queries_leave_out_none_and_write_booleans_as_the_api_server_reads_them(
    api: Api, proxy: ApiProxy
) -> None:
    seen: list[str] = []
    proxy.plant(Kind.SLOW, fits=noting(seen))
    api.text("/readyz", verbose=True, exclude=None, limit=7)
    assert seen == ["/readyz?verbose=true&limit=7"]


def test_requests_of_many_threads_are_counted(api: Api, namespace: str) -> None:
    where = fill(api, namespace, 2)
    api.calls = api.writes = 0
    change = {"data": {"text": "ä"}}

    def both(index: int) -> None:
        api.merge(f"{where}/c-{index % 2}", change)
        assert api.request("GET", f"{where}/c-{index % 2}")["data"] == {"text": "ä"}

    with ThreadPoolExecutor(20) as threads:
        list(threads.map(both, range(40)))
    assert (api.calls, api.writes) == (80, 40)


def test_a_refusal_names_the_account_and_the_missing_right(
    open_api: Any, api_server: ApiServer, namespace: str
) -> None:
    nobody = open_api(api_server.service_account(namespace, "nobody", []))
    with pytest.raises(KubernetesError, match=r"403.*nobody.*cannot list.*ask for") as raised:
        nobody.list(path_of("ConfigMap", namespace))
    assert raised.value.is_forbidden


# ---------------------------------------------------------------- which API server


def kubeconfig(where: Path, server: str = "http://127.0.0.1:9", namespace: str = "") -> str:
    named = f", namespace: {namespace}" if namespace else ""
    where.write_text(
        f"{{clusters: [{{name: c, cluster: {{server: '{server}'}}}}], "
        f"contexts: [{{name: c, context: {{cluster: c, user: u{named}}}}}, "
        "{name: other, context: {cluster: c, user: u, namespace: elsewhere}}], "
        "users: [{name: u, user: {token: t}}], current-context: c}"
    )
    return str(where)


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home without a kubeconfig, outside of any pod."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def pod(monkeypatch: pytest.MonkeyPatch, nowhere: Path, api_server: ApiServer) -> Path:
    """As in a pod of the API server; its token's file."""
    token = nowhere / "token"
    token.write_text("admin-of-the-tests")
    token.with_name("namespace").write_text("mine\n")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    ca = str(api_server.directory / "ca.crt")
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", ca)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(api_server.port))
    return token


def test_a_named_or_default_kubeconfig_is_preferred_to_the_pods_account(
    pod: Path, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chosen(**options: str) -> tuple[str, str | None]:
        api = connect("tests", PATIENT, **options)
        api.close()
        return api.host.rpartition(":")[2], api.namespace

    of_pod = chosen()
    assert of_pod[1] == "mine"
    (nowhere / ".kube").mkdir()
    kubeconfig(nowhere / ".kube/config", "http://127.0.0.1:1")
    assert chosen() == ("1", "default")
    monkeypatch.setenv("KUBECONFIG", kubeconfig(nowhere / "variable", "http://127.0.0.1:2", "two"))
    assert chosen() == ("2", "two")
    assert chosen(context="other") == ("2", "elsewhere")
    named = kubeconfig(nowhere / "named", "http://127.0.0.1:3")
    assert chosen(kubeconfig=named) == ("3", "default")
    assert chosen(context="other", namespace="given") == ("2", "given")


def test_in_a_pod_the_token_is_read_again(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passed = [datetime.timedelta(0)]

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.datetime.now(tz) + passed[0]

    clock = SimpleNamespace(datetime=Clock, timedelta=datetime.timedelta)
    monkeypatch.setattr(incluster_config, "datetime", clock)
    api = connect("tests", PATIENT)
    where = "/api/v1/namespaces/default"
    assert api.request("GET", where)["kind"] == "Namespace"
    pod.write_text("revoked")
    assert api.request("GET", where)["kind"] == "Namespace", "read at most once a minute"
    passed[0] = datetime.timedelta(seconds=61)
    with pytest.raises(KubernetesError, match="401"):
        api.request("GET", where)
    pod.write_text("")
    passed[0] *= 3
    with pytest.raises(KubernetesError, match="credentials cannot be read: Token file"):
        api.request("GET", where)
    api.close()


def test_an_unusable_kubeconfig_is_named_with_advice(nowhere: Path) -> None:
    with pytest.raises(MisuseError, match=r"kubeconfig ~/.kube/config cannot be used.*KUBECONFIG"):
        connect("tests", PATIENT)
    with pytest.raises(MisuseError, match=r"absent cannot be used \(no such file\); do this$"):
        connect("tests", PATIENT, kubeconfig=str(nowhere / "absent"), advice="do this")
    (nowhere / "broken").write_text("{")
    with pytest.raises(MisuseError, match="broken cannot be used"):
        connect("tests", PATIENT, kubeconfig=str(nowhere / "broken"))
    good = kubeconfig(nowhere / "good")
    with pytest.raises(MisuseError, match="cannot be used"):
        connect("tests", PATIENT, kubeconfig=good, context="nope")


def test_a_pod_without_a_token_gets_an_error_that_says_so(pod: Path) -> None:
    pod.unlink()
    with pytest.raises(MisuseError, match=r"this pod's account cannot be used.*token"):
        connect("tests", PATIENT)


def test_an_unavailable_api_server_is_named(nowhere: Path) -> None:
    api = connect("tests", PATIENT, kubeconfig=kubeconfig(nowhere / "config"))
    with pytest.raises(KubernetesError, match=r"http://127.0.0.1:9 does.*cannot be reached") as no:
        api.request("GET", path_of("ConfigMap", "shop"))
    assert no.value.status == 0
    api.close()


@contextmanager
def answering(where: Path, answer: bytes) -> Iterator[Api]:
    """A client of a server that sends these bytes, once."""

    def serve_one() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as threads:
        served = threads.submit(serve_one)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        api = connect("tests", PATIENT, kubeconfig=kubeconfig(where / "config", url))
        try:
            yield api
            served.result(60)
        finally:
            api.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\na part",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\na part\r\n",
    ],
)
def test_a_body_that_ends_early_is_an_error(nowhere: Path, answer: bytes) -> None:
    with (
        answering(nowhere, answer) as api,
        pytest.raises(KubernetesError, match="IncompleteRead"),
    ):
        api.text("/log")


@pytest.mark.parametrize("body", [b"{}", b'{"items": []}', b'{"kind": "Status", "metadata": {}}'])
def test_an_object_that_is_no_list_is_not_taken_for_an_empty_one(
    nowhere: Path, body: bytes
) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with (
        answering(nowhere, answer) as api,
        pytest.raises(KubernetesError, match="something other than a list"),
    ):
        api.list(path_of("ConfigMap", "shop"))
