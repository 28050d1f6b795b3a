"""The same Event about the same object is written once in a while, of however many objects."""

from typing import Any

import pytest

from penstock_operator import events
from penstock_operator.events import Events
from penstock_operator.kube import Kube


class Server(Kube):
    """Of which only Events are wanted."""

    def __init__(self) -> None:
        self.told: list[str] = []

    async def create(self, kind: str, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        self.told.append(body["regarding"]["uid"])
        return body


async def tell(written: Events, uid: str) -> None:
    body = {"metadata": {"name": "t", "namespace": "n", "uid": uid}}
    await written.tell(body, "Topic", "TopicChanged", "retention.ms reset")


async def test_thousands_of_topics_are_told_of_once() -> None:
    server = Server()
    written = Events(server, "test")
    for _ in range(2):
        for topic in range(1_500):
            await tell(written, f"uid-{topic}")
    assert len(server.told) == 1_500


async def test_of_more_than_are_remembered_the_oldest_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "_REMEMBERED", 2)
    server = Server()
    written = Events(server, "test")
    for uid in ("a", "b", "c", "b", "c", "a", "c"):
        await tell(written, uid)
    assert server.told == ["a", "b", "c", "a"]
