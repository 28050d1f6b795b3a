"""A real Kubernetes API for tests: etcd and kube-apiserver on loopback, nothing else.

    session fixture `api_server` ──▶ ApiServer ──▶ .url, .kubeconfig      (system:masters)
                                               ├─▶ .service_account(...)   (a kubeconfig with RBAC)
                                               ├─▶ .namespace(name)        (a fresh one)
                                               └─▶ .pause() / .resume(), .kill() / .start(),
                                                   .killed(), .without_database()

There are no controllers and no kubelets: Deployments stay without pods, deleted owners keep
their dependents, namespaces are never emptied. Tests make namespaces and names of their own.
The binaries are looked for in ${PENSTOCK_KUBERNETES_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/
penstock-kubernetes}/bin; without them the tests skip.
"""

import email.message
import io
import itertools
import json
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import urllib3
import yaml
from support.missing import cannot_run
from support.processes import HOST, ReservedPort, stop
from support.waiting import unwatch, wait_exit, wait_until, watch

from penstock.kubernetes.api import Timeouts

TIMEOUTS: Final = Timeouts(connect_s=60.0, total_s=120.0)
"""Of clients in tests. The operator gives an API server three seconds to take a connection, and
tries again later; a test that looks once would fail on a machine that stands still for as long."""
_START_S: Final = 90.0
_REQUEST_S: Final = 20.0
_LATER: Final = urllib3.Retry(
    total=None,
    connect=0,
    read=0,
    other=0,
    redirect=0,
    status=30,
    status_forcelist={429},
    allowed_methods=None,
    raise_on_status=False,
)
"""It asks to come back when a CRD has changed and its storage is not ready again; nothing was done,
and Retry-After says when. kubectl does the same."""
_ADMIN_TOKEN: Final = "admin-of-the-tests"
_BINARIES: Final = ("etcd", "kube-apiserver")
_namespaces = itertools.count(1)


def binaries() -> Path:
    """Where the binaries are, or would be."""
    cache = os.environ.get("PENSTOCK_KUBERNETES_CACHE", "")
    if not cache:
        home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        cache = f"{home}/penstock-kubernetes"
    return Path(cache) / "bin"


def missing() -> str:
    """Why no API server can be started here; empty if one can."""
    absent = [name for name in _BINARIES if not os.access(binaries() / name, os.X_OK)]
    return f"no Kubernetes API server here: {binaries()} lacks {', '.join(absent)}" * bool(absent)


class ApiServer:
    """Running once made. `url` and all kubeconfigs stay the same when it is started again."""

    def __init__(self, directory: Path, *extra_arguments: str) -> None:
        """`extra_arguments` of kube-apiserver, as `--feature-gates=…`."""
        if reason := missing():
            cannot_run(reason)
        self.directory = directory
        self._reserved = [ReservedPort() for _ in range(3)]
        self.port, self._etcd_port, self._peer_port = (each.port for each in self._reserved)
        self.url = f"https://{HOST}:{self.port}"
        self.kubeconfig = directory / "admin.kubeconfig"
        self._extra = extra_arguments
        self._etcd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._make_certificates()
        (directory / "tokens.csv").write_text(f'{_ADMIN_TOKEN},admin,admin,"system:masters"\n')
        self.write_kubeconfig(self.kubeconfig, _ADMIN_TOKEN)
        self._context = ssl.create_default_context(cafile=str(directory / "ca.crt"))
        # Kept open: tests ask it again and again, and a handshake costs more than most answers.
        self._connections = urllib3.PoolManager(ssl_context=self._context, maxsize=8)
        try:
            self._start_etcd()
            self.start()
        except BaseException:
            self.stop()
            raise

    # ------------------------------------------------------------ for tests

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """One call as administrator; the decoded answer. Raises urllib.error.HTTPError, and
        URLError where it was not answered."""
        url = f"{self.url}{path}"
        try:
            answer = self._connections.request(
                method,
                url,
                body=None if body is None else json.dumps(body).encode(),
                headers={
                    "Authorization": f"Bearer {_ADMIN_TOKEN}",
                    "Content-Type": "application/json",
                    **{name.replace("_", "-"): value for name, value in headers.items()},
                },
                timeout=_REQUEST_S,
                retries=_LATER,
            )
        except urllib3.exceptions.HTTPError as error:
            raise urllib.error.URLError(error) from error
        if answer.status >= 400:
            said = email.message.Message()
            content = io.BytesIO(answer.data)
            raise urllib.error.HTTPError(url, answer.status, answer.reason or "", said, content)
        return json.loads(answer.data)

    def namespace(self, prefix: str = "test") -> str:
        """A fresh namespace."""
        name = f"{prefix}-{os.getpid()}-{next(_namespaces)}"
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        self.request("POST", "/api/v1/namespaces", body)
        return name

    def service_account(self, namespace: str, name: str, rules: list[dict[str, Any]]) -> Path:
        """A kubeconfig of a service account that may do what the Role's `rules` say, no more."""
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
        accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        self.request("POST", accounts, account)
        group = "rbac.authorization.k8s.io"
        roles = f"/apis/{group}/v1/namespaces/{namespace}"
        role = {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": {"name": name}}
        self.request("POST", f"{roles}/roles", {**role, "rules": rules})
        binding = {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        }
        self.request("POST", f"{roles}/rolebindings", binding)
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = self.request("POST", f"{accounts}/{name}/token", asked)["status"]["token"]
        return self.write_kubeconfig(self.directory / f"{namespace}-{name}.kubeconfig", token)

    def write_kubeconfig(self, path: Path, token: str, url: str = "") -> Path:
        """`url`: another address than the server's own, as that of a proxy."""
        cluster: dict[str, str] = {"server": url or self.url}
        if cluster["server"].startswith("https"):
            cluster["certificate-authority"] = str(self.directory / "ca.crt")
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
        path.write_text(yaml.safe_dump(config))
        path.chmod(0o600)
        return path

    def admin_kubeconfig(self, path: Path, url: str) -> Path:
        """The administrator's, through a proxy at `url`."""
        return self.write_kubeconfig(path, _ADMIN_TOKEN, url)

    def pause(self) -> None:
        """SIGSTOP: connections are accepted and nothing answers."""
        assert self._server is not None
        stop(self._server.pid)

    def resume(self) -> None:
        """SIGCONT; waits until it answers again."""
        assert self._server is not None
        os.kill(self._server.pid, signal.SIGCONT)
        wait_until(self._ready, what="the API server is ready", timeout_s=_START_S)

    def kill(self) -> None:
        """kill -9 of the API server: connections are refused until `start`. etcd goes on."""
        unwatch(self)
        _end(self._server, signal.SIGKILL)
        self._server = None

    @contextmanager
    def killed(self) -> Iterator[None]:
        """Without the API server while the block runs."""
        self.kill()
        try:
            yield
        finally:
            self.start()

    @contextmanager
    def without_database(self) -> Iterator[None]:
        """With an API server whose etcd does not answer: SIGSTOP, and SIGCONT at the end."""
        assert self._etcd is not None
        stop(self._etcd.pid)
        try:
            yield
        finally:
            os.kill(self._etcd.pid, signal.SIGCONT)
            wait_until(self._ready, what="the API server is ready", timeout_s=_START_S)

    def start(self) -> None:
        """Starts the API server (again) and waits until it is ready."""
        assert self._server is None, "it runs already"
        watch(self, self._check_running)
        path = self.directory
        self._server = self._run(
            "kube-apiserver",
            f"--etcd-servers=http://{HOST}:{self._etcd_port}",
            f"--bind-address={HOST}",
            f"--advertise-address={HOST}",
            f"--secure-port={self.port}",
            "--endpoint-reconciler-type=none",
            f"--tls-cert-file={path}/server.crt",
            f"--tls-private-key-file={path}/server.key",
            f"--cert-dir={path}/generated",
            f"--client-ca-file={path}/ca.crt",
            f"--token-auth-file={path}/tokens.csv",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={path}/accounts.pub",
            f"--service-account-signing-key-file={path}/accounts.key",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--disable-admission-plugins=ServiceAccount",
            *self._extra,
        )
        wait_until(self._ready, what="the API server is ready", timeout_s=_START_S)

    def stop(self) -> None:
        """Ends everything, for good."""
        unwatch(self)
        for process in (self._server, self._etcd):
            _end(process, signal.SIGKILL)  # nothing of it is kept
        self._connections.clear()
        self._server = self._etcd = None
        for port in self._reserved:
            port.close()

    # ------------------------------------------------------------ parts

    def _check_running(self) -> None:
        for name, process in (("etcd", self._etcd), ("kube-apiserver", self._server)):
            if process is not None and process.poll() is not None:
                code = process.returncode
                raise AssertionError(f"{name} ended by itself: exit {code}\n{self.log(name)}")

    def _ready(self) -> bool:
        request = urllib.request.Request(
            f"{self.url}/readyz", headers={"Authorization": f"Bearer {_ADMIN_TOKEN}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=2.0, context=self._context) as answer:
                if answer.status != 200:
                    return False
            self.request("GET", "/api/v1/namespaces/default")
        except (OSError, urllib.error.HTTPError):
            return False
        return True

    def _start_etcd(self) -> None:
        client, peer = f"http://{HOST}:{self._etcd_port}", f"http://{HOST}:{self._peer_port}"
        self._etcd = self._run(
            "etcd",
            f"--data-dir={self.directory}/etcd",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )

    def log(self, name: str) -> str:
        """The end of what a process wrote."""
        return (self.directory / f"{name}.log").read_text(errors="replace")[-4_000:]

    def _run(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        # It must not outlive the tests, however they end.
        tether = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        command = [*tether, str(binaries() / name), *arguments]
        with (self.directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _make_certificates(self) -> None:
        (self.directory / "names").write_text(f"subjectAltName=IP:{HOST},DNS:localhost\n")
        key = "-newkey rsa:2048 -nodes"
        sign = "-CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -extfile names"
        for command in (
            f"req -x509 {key} -days 30 -subj /CN=test-ca -keyout ca.key -out ca.crt",
            f"req {key} -subj /CN=kube-apiserver -keyout server.key -out server.csr",
            f"x509 -req -in server.csr {sign} -out server.crt",
            "genrsa -out accounts.key 2048",
            "rsa -in accounts.key -pubout -out accounts.pub",
        ):
            subprocess.run(
                ["openssl", *command.split()], cwd=self.directory, check=True, capture_output=True
            )


def start_api_server() -> tuple[ApiServer, tempfile.TemporaryDirectory[str]]:
    """One in a scratch directory; for the fixture and benchmarks, who stop and clean it up."""
    if reason := missing():
        cannot_run(reason)
    scratch = tempfile.TemporaryDirectory(prefix="penstock-api-")
    return ApiServer(Path(scratch.name)), scratch


def _end(process: subprocess.Popen[bytes] | None, number: int) -> None:
    if process is None:
        return
    if process.poll() is None:
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
    wait_exit(process, 30)
