"""Names that the shell completes: in time or not at all, and none of a Cluster on Kubernetes."""

import asyncio
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import pytest

from penstock.cli import completion

CASES = [(completion.topics, "flights"), (completion.groups, "flyers")]
asked: list[str] = []


class Cluster:
    """An admin client of a cluster that answers, unless one of two steps `hangs`."""

    hangs = ""

    def __init__(self, bootstrap: str, **_: object) -> None:
        asked.append(bootstrap)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    async def list_topics(self) -> list[str]:
        await self._step("connecting")
        await self._step("request")
        return ["trains", "flights"]

    async def list_groups(self) -> list[Any]:
        await self.list_topics()
        return [SimpleNamespace(group_id="flyers")]

    async def _step(self, name: str) -> None:
        if name == self.hangs:
            await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def _cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    asked.clear()
    monkeypatch.setattr("penstock.client.AsyncAdmin", Cluster)
    monkeypatch.setattr(Cluster, "hangs", "")


def context(**before: object) -> Any:
    """Of a command with `--bootstrap`, unless options `before` it name a cluster."""
    root = SimpleNamespace(params=before)
    own = {} if before else {"bootstrap": "127.0.0.1:1"}
    return SimpleNamespace(find_root=lambda: root, params=own)


@pytest.mark.parametrize(("complete", "name"), CASES)
def test_names_that_begin_so_are_offered(complete: Any, name: str) -> None:
    assert complete(context(), "fl") == [name]
    assert complete(context(), "x") == []


@pytest.mark.parametrize("step", ["connecting", "request"])
@pytest.mark.parametrize(("complete", "name"), CASES)
def test_one_deadline_ends_connecting_and_the_request(
    complete: Any, name: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cluster, "hangs", step)
    assert complete(context(), name) == []
    assert asked == ["127.0.0.1:1"]


@pytest.mark.parametrize(("complete", "name"), CASES)
def test_nobody_is_asked_for_names_of_a_cluster_on_kubernetes(complete: Any, name: str) -> None:
    assert complete(context(cluster="air/flights"), name) == []
    assert asked == []
