"""What Kopf hears becomes wake-ups of workers, on the event loop, of however many objects."""

import asyncio
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

import kopf
import pytest
from support.apiserver import ApiServer
from support.operator_process import install_crds
from support.waiting import wait_until_async

from penstock.kubernetes.names import CLUSTER_LABEL, METADATA_LABEL
from penstock_operator.handlers import kopf_settings, register
from penstock_operator.workers import Workers

OBJECTS = 600


class Heard:
    """In the place of `Workers`: which Clusters were named how often, and by which threads."""

    def __init__(self) -> None:
        self.woken: Counter[tuple[str, str]] = Counter()
        self.threads: set[int] = set()

    def wake(self, namespace: str, cluster: str, *, topics: bool = False) -> None:
        self.woken[namespace, "topics" if topics else cluster] += 1
        self.threads.add(threading.get_ident())

    def group_changed(
        self, namespace: str, cluster: str, _body: Mapping[str, Any], *, deleted: bool
    ) -> None:
        self.wake(namespace, f"{cluster} {deleted}")


async def test_all_objects_are_heard_of_on_the_event_loop(
    api_server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_crds(api_server)
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig))
    namespace = api_server.namespace("handlers")
    ours = f"/apis/penstock.dev/v1alpha1/namespaces/{namespace}"
    for kind, spec in (
        ("Cluster", {"brokers": 1}),
        ("Topic", {"cluster": "flights"}),
        ("ConsumerGroup", {"cluster": "flights"}),
    ):
        body = {
            "apiVersion": "penstock.dev/v1alpha1",
            "kind": kind,
            "metadata": {"name": "flights"},
            "spec": spec,
        }
        api_server.request("POST", f"{ours}/{kind.lower()}s", body)
    labels = {CLUSTER_LABEL: "flights", METADATA_LABEL: "topic"}
    for number in range(OBJECTS):
        body = {"metadata": {"name": f"topic-{number}", "labels": labels}}
        api_server.request("POST", f"/api/v1/namespaces/{namespace}/configmaps", body)
    heard, stop = Heard(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(
            kopf.operator(
                registry=register(cast("Workers", heard)),
                settings=kopf_settings(cluster_wide=False),
                standalone=True,
                identity="tests",  # type: ignore[arg-type]  # its NewType is not public
                namespaces=[namespace],
                stop_flag=stop,
            )
        )
        try:
            await wait_until_async(
                lambda: (
                    heard.woken[namespace, "topics"] > OBJECTS
                    and {(namespace, "flights"), (namespace, "flights False")} <= heard.woken.keys()
                ),
                what=f"all of {OBJECTS} ConfigMaps and what is beside them",
                timeout_s=120,
            )
        finally:
            stop.set()
    assert heard.threads == {threading.get_ident()}, "two threads would make two workers"
