"""Names that the shell completes: in time or not at all, and none of a Cluster on Kubernetes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from support.cluster import Cluster
from support.waiting import wait_until

from penstock.cli import completion
from penstock.client import Consumer
from penstock.client.config import ClientConfig

CASES = [(completion.topics, "flights"), (completion.groups, "flyers")]
asked: list[str] = []


class Answers:
    """A cluster that answers, unless one of two steps `hangs`."""

    hangs = ""

    @asynccontextmanager
    async def connect(self, bootstrap: str, config: ClientConfig) -> AsyncIterator[None]:
        assert config == ClientConfig()
        asked.append(bootstrap)
        await self._step("connecting")
        yield

    async def topics(self, asking: None) -> list[str]:
        await self._step("request")
        return ["trains", "flights"]

    async def groups(self, asking: None) -> list[Any]:
        await self._step("request")
        return [SimpleNamespace(group_id="flyers")]

    async def _step(self, name: str) -> None:
        if name == self.hangs:
            await asyncio.Event().wait()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Answers:
    asked.clear()
    answers = Answers()
    monkeypatch.setattr("penstock.client.admin.asking.asking_once", answers.connect)
    monkeypatch.setattr("penstock.client.admin.topic_calls.list_topics", answers.topics)
    monkeypatch.setattr("penstock.client.admin.group_calls.list_groups", answers.groups)
    return answers


def context(**before: object) -> Any:
    """Of a command with `--bootstrap`, unless options `before` it name a cluster."""
    root = SimpleNamespace(params=before)
    own = {} if before else {"bootstrap": "127.0.0.1:1"}
    return SimpleNamespace(find_root=lambda: root, params=own)


@pytest.mark.parametrize(("complete", "name"), CASES)
def test_names_that_begin_so_are_offered(complete: Any, name: str, cluster: Answers) -> None:
    assert complete(context(), "fl") == [name]
    assert complete(context(), "x") == []


@pytest.mark.parametrize("step", ["connecting", "request"])
@pytest.mark.parametrize(("complete", "name"), CASES)
def test_one_deadline_ends_connecting_and_the_request(
    complete: Any, name: str, step: str, cluster: Answers
) -> None:
    cluster.hangs = step
    assert complete(context(), name) == []
    assert asked == ["127.0.0.1:1"]


@pytest.mark.parametrize(("complete", "name"), CASES)
def test_nobody_is_asked_for_names_of_a_cluster_on_kubernetes(
    complete: Any, name: str, cluster: Answers
) -> None:
    assert complete(context(cluster="air/flights"), name) == []
    assert asked == []


def test_names_come_from_a_real_cluster(
    shared_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes here."""
    monkeypatch.setattr(completion, "TIMEOUT_S", 30)
    shared_cluster.create_topic("completed-topic")
    here: Any = SimpleNamespace(
        params={"bootstrap": shared_cluster.bootstrap},
        find_root=lambda: SimpleNamespace(params={}),
    )
    with Consumer(shared_cluster.bootstrap, group_id="completed-group") as consumer:
        consumer.subscribe("completed-topic")
        wait_until(lambda: consumer.poll(0.2) or consumer.assignment(), what="it is a member")
        assert completion.topics(here, "completed-") == ["completed-topic"]
        assert completion.groups(here, "completed-") == ["completed-group"]
