"""The operator as a process against an API server, and the objects a test looks at."""

import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from support import forked, waiting
from support.apiserver import ApiServer
from support.processes import ReservedPort
from support.waiting import unwatch, wait_exit, wait_until

ROOT = Path(__file__).parents[2]
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
OURS = "/apis/penstock.dev/v1alpha1"


def install_crds(server: ApiServer) -> None:
    """Creates our CRDs and waits until they are served."""
    for file in sorted((ROOT / "crds").glob("*.yaml")):
        crd = yaml.safe_load(file.read_text())
        try:
            server.request("POST", CRDS, crd)
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise
    for plural in ("clusters", "topics", "consumergroups"):
        wait_until(partial(_served, server, plural), what=f"{plural} are served")


def _served(server: ApiServer, plural: str) -> bool:
    """A CRD's storage answers 404, 429 or 503 until it is ready."""
    try:
        return bool(server.request("GET", f"{OURS}/{plural}"))
    except urllib.error.HTTPError:
        return False


def get(server: ApiServer, path: str) -> Any:
    """The object, or None."""
    try:
        return server.request("GET", path)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


def condition(body: dict[str, Any] | None, kind: str) -> dict[str, Any]:
    """A condition of an object; empty if there is none."""
    found = ((body or {}).get("status") or {}).get("conditions") or []
    return next((each for each in found if each["type"] == kind), {})


class Operator:
    """One process. `watch`: the namespace that it watches, empty for all. `launcher`: words after
    `python`, `environment` beside that of the tests."""

    def __init__(
        self,
        server: ApiServer,
        directory: Path,
        *,
        namespace: str,
        watch: str,
        options: Sequence[str] = (),
        kubeconfig: Path | None = None,
        launcher: Sequence[str] = ("-m", "penstock_operator"),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._reserved = ReservedPort()
        name = f"op-{self._reserved.port}"
        self.log = directory / f"{name}.log"
        self._stderr = self.log.open("ab")
        self._process = forked.Popen(
            forked.OPERATOR,
            [
                *launcher,
                "--broker-image=penstock-broker:test",
                f"--namespaces={watch}",
                f"--namespace={namespace}",
                f"--health-listen={self._reserved.address}",
                *options,
            ],
            env={
                **os.environ,
                "KUBECONFIG": str(kubeconfig or server.kubeconfig),
                "POD_NAME": name,
                "TMPDIR": str(directory),  # what a killed one leaves goes with the test's files
                **(environment or {}),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
        )
        waiting.watch(self, self._check_running)

    def _check_running(self) -> None:
        code = self._process.poll()
        assert code is None, f"the operator ended by itself: exit {code}\n{self.tail()}"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def address(self) -> str:
        """Of health and metrics."""
        return self._reserved.address

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-6_000:]

    def metric(self, name: str) -> float:
        """A figure without labels from /metrics."""
        for line in self.ask("/metrics").splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
        raise AssertionError(f"no metric {name}")

    def ask(self, path: str) -> str:
        with urllib.request.urlopen(
            f"http://{self._reserved.address}{path}", timeout=120
        ) as answer:
            return str(answer.read().decode())

    @property
    def is_up(self) -> bool:
        try:
            return self.ask("/healthz") == "ok\n"
        except OSError:
            return False

    @property
    def leads(self) -> bool:
        try:
            return self.metric("penstock_operator_leader") == 1
        except OSError:
            return False

    def kill(self) -> None:
        unwatch(self)
        self._process.kill()
        wait_exit(self._process, 30)
        self._stderr.close()
        self._reserved.close()

    def wait_end(self) -> int:
        """The exit code of one that ends by itself."""
        unwatch(self)
        return wait_exit(self._process, 60)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        unwatch(self)
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return wait_exit(self._process, 60)


@contextmanager
def running(
    server: ApiServer,
    directory: Path,
    namespace: str,
    *,
    watch: str | None = None,
    options: Sequence[str] = (),
    kubeconfig: Path | None = None,
) -> Iterator[Operator]:
    """An operator that watches one namespace, until the block ends; its log with a failure.

    `watch` "": all namespaces. `kubeconfig`: another than the administrator's.
    """
    operator = Operator(
        server,
        directory,
        namespace=namespace,
        watch=namespace if watch is None else watch,
        options=options,
        kubeconfig=kubeconfig,
    )
    try:
        yield operator
    except BaseException:
        print(operator.tail())
        raise
    finally:
        operator.kill()
