"""The Secret of the CA is lost under load: it goes on, says so, and there is a way back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.apiserver import ApiServer
from support.operator_process import OURS, condition
from support.rotating_load import TOPIC, Producing, login, read_all
from support.rotating_pods import RotatingPods
from support.waiting import wait_until

from penstock.client import Admin

WAIT_S = 60


@pytest.fixture
def pods(api_server: ApiServer, tmp_path: Path) -> Iterator[RotatingPods]:
    with RotatingPods(api_server, tmp_path) as made:
        made.start_all()
        yield made


def stalled(pods: RotatingPods) -> dict[str, Any]:
    return condition(pods.object(OURS, "clusters", pods.names.cluster), "Stalled")


def lose(pods: RotatingPods) -> dict[str, Any]:
    """Deletes the Secret, and waits until the Cluster says so. Returns a backup."""
    backup: dict[str, Any] = pods.waited("/api/v1", "secrets", pods.names.authority)
    pods.server.request("DELETE", f"{secrets(pods)}/{pods.names.authority}")
    wait_until(
        lambda: stalled(pods).get("reason") == "AuthorityLost",
        what="the Cluster says so",
        timeout_s=WAIT_S,
    )
    assert pods.names.authority in stalled(pods)["message"]
    return backup


def secrets(pods: RotatingPods) -> str:
    return f"/api/v1/namespaces/{pods.names.namespace}/secrets"


def is_well(pods: RotatingPods) -> bool:
    return bool(stalled(pods).get("status") == "False")


def test_a_lost_ca_is_told_of_and_what_runs_goes_on_until_it_is_restored(
    pods: RotatingPods,
) -> None:
    given = login(pods)
    with Admin(pods.bootstrap, **given) as admin:  # type: ignore[arg-type]
        admin.create_topic(TOPIC, 1, 3)
    with Producing(pods) as producing:
        producing.goes_on()
        backup = lose(pods)
        producing.goes_on()

        # A broker gets a new certificate from a controller's memory.
        broker = pods.brokers[2]
        broker.kill()
        for file in (pods.data(2) / "tls").iterdir():
            file.unlink()
        broker.start()
        broker.wait_serving(WAIT_S)
        producing.goes_on()

        # A controller does not start without it; the other one goes on.
        dies = next(each for each in pods.controllers if each is not pods.active())
        dies.kill()
        dies.start(wait=False)
        assert dies.wait_end(WAIT_S) != 0
        assert "--ca-certificate" in dies.log_text().splitlines()[-1]
        producing.goes_on()

        kept = {key: backup["metadata"][key] for key in ("name", "labels", "ownerReferences")}
        pods.server.request("POST", secrets(pods), {**backup, "metadata": kept})
        wait_until(lambda: is_well(pods), what="all is well", timeout_s=WAIT_S)
        dies.start()
        producing.goes_on()
    assert producing.failures == []
    assert read_all(pods, len(producing.acknowledged), **given) == producing.acknowledged


def test_a_lost_ca_without_a_backup_is_replaced_while_controllers_run(pods: RotatingPods) -> None:
    given = login(pods)
    with Admin(pods.bootstrap, **given) as admin:  # type: ignore[arg-type]
        admin.create_topic(TOPIC, 1, 3)
    with Producing(pods) as producing:
        producing.goes_on()
        lose(pods)
        pods.rotate("lost", wait_s=0)
        pods.wait_state("Settled", secret="ca-2")
        wait_until(lambda: is_well(pods), what="all is well", timeout_s=WAIT_S)
        producing.goes_on()
        for process in pods.controllers:
            process.kill()
            process.start()
        producing.goes_on()
    assert producing.failures == []
    assert read_all(pods, len(producing.acknowledged), **given) == producing.acknowledged
