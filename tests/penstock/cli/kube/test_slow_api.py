"""`kubectl penstock status` while parts of the Kubernetes API hang."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from support.api_proxy import ApiProxy, Kind
from support.apiserver import ApiServer
from support.kube_scene import Scene
from support.waiting import wait_until
from typer.testing import CliRunner

from penstock.cli.kube.report import PODS_AT_ONCE
from penstock.cli.main import app

FOR_EVER_S = 600.0


@pytest.fixture
def proxy(api_server: ApiServer) -> Iterator[ApiProxy]:
    made = ApiProxy(api_server)
    yield made
    made.close()


def three_kinds(_method: str, path: str) -> bool:
    return any(f"/{plural}" in path for plural in ("events", "topics", "statefulsets"))


def status(proxy: ApiProxy, scene: Scene, file: Path) -> Any:
    words = ["status", "-o", "json", "--kubeconfig", str(proxy.kubeconfig(file))]
    return CliRunner().invoke(app, [*words, "-n", scene.namespace])


def test_all_that_hangs_is_waited_for_once_and_told(
    api_server: ApiServer, proxy: ApiProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.kube.snapshot.READ_S", 5.0)
    scene = Scene(api_server)
    scene.healthy()

    proxy.plant(Kind.SLOW, fits=three_kinds, times=None, seconds=FOR_EVER_S)
    done = status(proxy, scene, tmp_path / "kubeconfig")
    seen = json.loads(done.stdout)
    assert seen["unread"] == ["StatefulSet", "Topic"]
    for plural in ("events", "topics", "statefulsets"):
        assert any(f"/{plural}" in gap for gap in seen["gaps"]), plural
    assert seen["partitions"]["total"] == 2, "what was read is shown"
    assert len(seen["brokers"]) == 3
    assert done.exit_code == 0


def test_nothing_more_is_asked_when_the_time_is_over(
    api_server: ApiServer, proxy: ApiProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator is looked for by several requests, one after the other."""
    monkeypatch.setattr("penstock.cli.kube.snapshot.READ_S", 3.0)
    scene = Scene(api_server)
    scene.healthy()

    def hangs(_method: str, path: str) -> bool:
        return path.startswith("/apis/apps/v1/deployments")

    proxy.plant(Kind.SLOW, fits=hangs, times=None, seconds=FOR_EVER_S)
    done = status(proxy, scene, tmp_path / "kubeconfig")
    gaps = json.loads(done.stdout)["gaps"]
    over = "was not read: the Kubernetes API took 3 s for the rest"
    assert any(gap.endswith(over) for gap in gaps), gaps


PATIENT: Final = """
from penstock.cli.kube import choice, report, snapshot
from penstock.cli.main import main
from penstock.kubernetes.api import Timeouts
choice.TOTAL_S = snapshot.READ_S = 600.0
report.TEXT_TIMEOUTS = Timeouts(connect_s=600.0, total_s=600.0)
main()
"""


def logs(_method: str, path: str) -> bool:
    return path.partition("?")[0].endswith("/log")


@pytest.mark.parametrize(
    ("words", "hangs", "at_once"),
    [(["status"], three_kinds, 3), (["report", "-f", "flights.zip"], logs, PODS_AT_ONCE)],
    ids=["status", "report"],
)
def test_all_is_asked_at_the_same_time_and_ctrl_c_waits_for_none(
    api_server: ApiServer,
    proxy: ApiProxy,
    tmp_path: Path,
    words: list[str],
    hangs: Callable[[str, str], bool],
    at_once: int,
) -> None:
    scene = Scene(api_server)
    scene.healthy()
    fault = proxy.plant(Kind.SLOW, fits=hangs, times=None, seconds=FOR_EVER_S)
    where = ["--kubeconfig", str(proxy.kubeconfig(tmp_path / "kubeconfig")), "-n", scene.namespace]
    with subprocess.Popen(
        [sys.executable, "-c", PATIENT, *words, *where],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
    ) as process:
        try:
            wait_until(lambda: fault.held == at_once, what="all of them hang")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert (process.returncode, out) == (130, b"")
    assert b"Traceback" not in err
    assert not (tmp_path / "flights.zip").exists(), "half a bundle is none"
