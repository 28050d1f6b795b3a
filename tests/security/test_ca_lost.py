"""The Secret of the CA is lost under load: it goes on, says so, and there is a way back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.apiserver import ApiServer
from support.background import Background
from support.operator_process import OURS, condition
from support.rotating_pods import RotatingPods
from support.waiting import wait_until

from penstock.client import Admin, Consumer, Producer, TopicPartition

TOPIC = "t"
WAIT_S = 60


@pytest.fixture
def pods(api_server: ApiServer, tmp_path: Path) -> Iterator[RotatingPods]:
    with RotatingPods(api_server, tmp_path) as made:
        made.start_all()
        yield made


class Producing(Background):
    """Sends numbers without a pause."""

    def __init__(self, bootstrap: str, given: dict[str, str]) -> None:
        super().__init__()
        self._bootstrap, self._given = bootstrap, given
        self.acknowledged: list[bytes] = []

    def goes_on(self) -> None:
        before = len(self.acknowledged)
        wait_until(
            lambda: self.failures or len(self.acknowledged) > before + 20, what="some more arrive"
        )
        assert self.failures == []

    def _run(self) -> None:
        with Producer(self._bootstrap, **self._given) as producer:  # type: ignore[arg-type]
            while not self._stop.is_set():
                value = f"{len(self.acknowledged)}".encode()
                try:
                    producer.send(TOPIC, value).result(60)
                except Exception as error:  # noqa: BLE001 - the test reads it
                    self.failures.append(error)
                    return
                self.acknowledged.append(value)


def stalled(pods: RotatingPods) -> dict[str, Any]:
    return condition(pods.object(OURS, "clusters", pods.names.cluster), "Stalled")


def test_a_lost_ca_is_told_of_and_what_runs_goes_on_until_it_is_restored(
    pods: RotatingPods,
) -> None:
    token = pods.path / "admin-token"
    token.write_text(pods.token(pods.names.admin, pods.names.audience))
    given = {"ca_file": str(pods.path / "client" / "ca.crt"), "token_file": str(token)}
    with Admin(pods.bootstrap, **given) as admin:  # type: ignore[arg-type]
        admin.create_topic(TOPIC, 1, 3)
    secrets = f"/api/v1/namespaces/{pods.names.namespace}/secrets"
    backup = pods.object("/api/v1", "secrets", pods.names.authority)
    assert backup is not None
    with Producing(pods.bootstrap, given) as producing:
        producing.goes_on()
        pods.server.request("DELETE", f"{secrets}/{pods.names.authority}")
        wait_until(
            lambda: stalled(pods).get("reason") == "AuthorityLost",
            what="the Cluster says so",
            timeout_s=WAIT_S,
        )
        assert pods.names.authority in stalled(pods)["message"]
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

        restored = {
            **backup,
            "metadata": {
                key: backup["metadata"][key] for key in ("name", "labels", "ownerReferences")
            },
        }
        pods.server.request("POST", secrets, restored)
        wait_until(
            lambda: stalled(pods).get("status") == "False", what="all is well", timeout_s=WAIT_S
        )
        dies.start()
        producing.goes_on()
    assert producing.failures == []
    with Consumer(pods.bootstrap, auto_offset_reset="earliest", **given) as consumer:  # type: ignore[arg-type]
        consumer.assign([TopicPartition(TOPIC, 0)])
        records = iter(consumer)
        found = [next(records).value for _ in producing.acknowledged]
    assert found == producing.acknowledged
