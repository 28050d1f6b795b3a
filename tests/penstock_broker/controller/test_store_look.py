"""What somebody changes in the metadata store by hand is undone, also in a quiet cluster."""

import json
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import pytest
from support.waiting import wait_until_async

from penstock.core.control import ControlConfig
from penstock.errors import ErrorCode, PenstockError
from penstock.proto.v1 import admin_pb2
from penstock_broker.controller.metadata_store.interface import StoredText, StoreUnavailableError
from penstock_broker.controller.metadata_store.memory import MemoryMetadataStore, SharedDocuments
from penstock_broker.serving.edge import first_error

if TYPE_CHECKING:
    from .conftest import Run, Running

KEY = "topic/t"
DAY_S = 86_400.0


class Watched(MemoryMetadataStore):
    """Counts who asks. Once `away`, it cannot be read; leases are renewed nevertheless."""

    away = False
    asked = 0

    def read_all(self) -> dict[str, StoredText]:
        self.asked += 1
        if self.away:
            raise StoreUnavailableError("planted: it cannot be read")
        return super().read_all()


def start(
    run: "Run", documents: SharedDocuments, look_every_s: float
) -> "AbstractAsyncContextManager[Running]":
    store = MemoryMetadataStore(documents)
    return run(store, ControlConfig(), wait=True, look_every_s=look_every_s)


def change(documents: SharedDocuments, how: str, older: StoredText) -> None:
    """By hand."""
    if how == "deleted":
        del documents.documents[KEY]
    else:
        documents.writes += 1
        documents.documents[KEY] = StoredText(older.text, str(documents.writes))


async def filled(running: "Running", documents: SharedDocuments) -> StoredText:
    """A topic whose settings have changed since; its document from before that."""
    await running.broker(0)
    await running.create(replication_factor=1)
    older = documents.documents[KEY]
    changed = admin_pb2.AlterConfigsRequest(topic="t", set={"retention.ms": "1000"})
    assert not (await running.admin.AlterConfigs(changed)).HasField("error")
    return older


def content(documents: SharedDocuments) -> dict[str, object] | None:
    """Without what each write changes."""
    if KEY not in documents.documents:
        return None
    found: dict[str, object] = json.loads(documents.documents[KEY].text)
    del found["metadata_version"]
    return found


@pytest.mark.parametrize("how", ["deleted", "an older one applied"])
async def test_it_is_undone_while_nothing_else_is_written(
    run: "Run", documents: SharedDocuments, how: str
) -> None:
    async with start(run, documents, 0.05) as running:
        older = await filled(running, documents)
        right = content(documents)
        change(documents, how, older)
        await wait_until_async(lambda: content(documents) == right, what="it is undone")


@pytest.mark.parametrize("how", ["deleted", "an older one applied"])
async def test_it_is_undone_before_a_controller_hands_over(
    run: "Run", documents: SharedDocuments, how: str
) -> None:
    async with start(run, documents, DAY_S) as running:
        older = await filled(running, documents)
        right = content(documents)
        change(documents, how, older)
    assert content(documents) == right
    async with start(run, documents, DAY_S) as successor:
        broker = await successor.broker(0, run=2)
        await broker.until(lambda: broker.topic("t"), "the topic is there")


@pytest.mark.parametrize("active", [True, False], ids=["active", "takes over"])
async def test_nobody_begins_a_new_cluster_beside_topics(
    run: "Run", documents: SharedDocuments, active: bool
) -> None:
    """The active controller writes the document again; one that takes over asks for a person."""
    async with start(run, documents, DAY_S) as running:
        await filled(running, documents)
        kept = documents.documents["cluster"]
        if active:
            del documents.documents["cluster"]
    if active:
        assert json.loads(documents.documents["cluster"].text)["controller_epoch"] == 1
        return
    del documents.documents["cluster"]
    with pytest.raises(BaseExceptionGroup) as caught:
        async with run(MemoryMetadataStore(documents), ControlConfig(), wait=False) as successor:
            await wait_until_async(lambda: successor.runtime.active, what="it takes over")
    error = first_error(caught.value)
    assert isinstance(error, PenstockError)
    assert error.code is ErrorCode.DATA_CORRUPTED
    assert "cluster is missing beside those of 1 topics" in error.message
    assert set(documents.documents) == {KEY}
    documents.documents["cluster"] = kept
    async with start(run, documents, DAY_S) as restored:
        broker = await restored.broker(0, run=2)
        await broker.until(lambda: broker.topic("t"), "the topic is there")


async def test_a_store_that_cannot_be_read_keeps_nobody_from_work(
    run: "Run", documents: SharedDocuments
) -> None:
    store = Watched(documents)
    async with run(store, ControlConfig(), wait=True, look_every_s=0.05) as running:
        await running.broker(0)
        store.away, before = True, store.asked
        await wait_until_async(lambda: store.asked > before + 3, what="it has looked")
        await running.create(replication_factor=1)
        assert KEY in documents.documents


@pytest.mark.parametrize("journaled", [False, True], ids=["without a journal", "with one"])
async def test_nothing_is_read_again_while_nobody_else_writes(
    run: "Run", documents: SharedDocuments, caplog: pytest.LogCaptureFixture, journaled: bool
) -> None:
    store = Watched(documents)
    settings = {"look_every_s": 0.02, "journaled": journaled}
    async with run(store, ControlConfig(), wait=True, **settings) as running:
        await filled(running, documents)
        before = store.asked
        await wait_until_async(lambda: store.asked > before + 10, what="it has looked")
        assert "somebody else has changed" not in caplog.text
        change(documents, "deleted", documents.documents[KEY])
        await wait_until_async(lambda: KEY in documents.documents, what="it is undone")
        assert "somebody else has changed" in caplog.text
