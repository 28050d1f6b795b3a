"""What every metadata store must do: compare-and-swap, stages, doubtful answers, the lease.

A new implementation adds itself to `STORES`: how to make a client, and how to make another one of
the same documents (None if only one process at a time may use them). Those that block run behind
their threads, as in a controller. The Kubernetes store runs on a real API server.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.controller_seams import threaded
from support.kubernetes_store import PATIENT, open_store

from penstock.core.control.journal.contract import AskKeep, AskPromises, Kept, Promises
from penstock.kubernetes import lease
from penstock_broker.controller.metadata_store.interface import (
    Delete,
    MetadataStore,
    Put,
    StoreUnavailableError,
    WriteConflictError,
)
from penstock_broker.controller.metadata_store.journaled import JournaledStore
from penstock_broker.controller.metadata_store.kubernetes_objects import ClusterObjects
from penstock_broker.controller.metadata_store.local import LocalMetadataStore
from penstock_broker.controller.metadata_store.memory import (
    Failure,
    MemoryMetadataStore,
    SharedDocuments,
)


@dataclass
class Subject:
    """A store under test. `reopen` gives it as after a restart, in its place."""

    store: MetadataStore
    another_client: Callable[[], MetadataStore] | None
    reopen: Callable[[], MetadataStore]
    pass_time: Callable[[int], None]


Make = Callable[[Path, Any, ExitStack], Subject]


def memory_subject(_path: Path, _request: Any, stack: ExitStack) -> Subject:
    clock = [0]
    shared = SharedDocuments(lambda: clock[0])

    def pass_time(duration_ms: int) -> None:
        clock[0] += duration_ms

    def client() -> MetadataStore:
        return stack.enter_context(threaded(MemoryMetadataStore(shared)))

    return Subject(client(), client, client, pass_time)


class Nobody:
    """There are no brokers yet, whom a `JournaledStore` could ask."""

    async def promise(self, ask: AskPromises) -> Promises:
        raise AssertionError(ask)

    async def keep(self, ask: AskKeep) -> Kept:
        raise AssertionError(ask)


def journaled_subject(path: Path, request: Any, stack: ExitStack) -> Subject:
    """While the store it wraps is there it is that store; away: tests of `journaled`."""
    inner = memory_subject(path, request, stack)
    assert inner.another_client is not None
    make = inner.another_client

    def client() -> MetadataStore:
        return JournaledStore(make(), Nobody())

    return Subject(client(), client, client, inner.pass_time)


def local_subject(path: Path, _request: Any, stack: ExitStack) -> Subject:
    process = stack.enter_context(ExitStack())

    def reopen() -> MetadataStore:
        process.close()
        made = LocalMetadataStore(path)
        process.callback(made.close)
        return process.enter_context(threaded(made))

    return Subject(reopen(), None, reopen, lambda _duration_ms: None)


def kubernetes_subject(path: Path, request: Any, stack: ExitStack) -> Subject:
    server = request.getfixturevalue("api_server")
    path.parent.mkdir(exist_ok=True)
    request.getfixturevalue("monkeypatch").setattr(lease, "TIMEOUTS", PATIENT)
    objects = ClusterObjects("flights", server.namespace())
    clock = [0.0]

    def pass_time(duration_ms: int) -> None:
        clock[0] += duration_ms / 1000

    def client() -> MetadataStore:
        made = open_store(server.kubeconfig, objects, lambda: clock[0])
        stack.callback(made.close)
        return stack.enter_context(threaded(made))

    return Subject(client(), client, client, pass_time)


STORES: dict[str, Make] = {
    "memory": memory_subject,
    "journaled": journaled_subject,
    "local": local_subject,
    "kubernetes": kubernetes_subject,
}


@pytest.fixture(params=sorted(STORES))
async def subject(request: Any, tmp_path: Path) -> AsyncIterator[Subject]:
    with ExitStack() as stack:
        yield STORES[request.param](tmp_path / "metadata", request, stack)


@pytest.fixture
async def store(subject: Subject) -> MetadataStore:
    return subject.store


# ---------------------------------------------------------------- reading and writing


async def test_a_new_store_is_empty(store: MetadataStore) -> None:
    assert await store.read_all() == {}


async def test_what_was_written_is_read_with_its_version(store: MetadataStore) -> None:
    versions = await store.write(
        [[Put("cluster", "one", None), Put("topic/ä.b_C", "zwei ö", None)]]
    )
    found = await store.read_all()
    assert {key: stored.text for key, stored in found.items()} == {
        "cluster": "one",
        "topic/ä.b_C": "zwei ö",
    }
    assert {key: stored.version for key, stored in found.items()} == versions


async def test_every_replacement_changes_the_version(store: MetadataStore) -> None:
    first = (await store.write([[Put("k", "same", None)]]))["k"]
    second = (await store.write([[Put("k", "same", first)]]))["k"]
    assert first != second
    assert (await store.read_all())["k"].version == second


async def test_a_version_never_comes_back_after_a_deletion(store: MetadataStore) -> None:
    first = (await store.write([[Put("k", "same", None)]]))["k"]
    await store.write([[Delete("k", first)]])
    assert await store.read_all() == {}
    again = (await store.write([[Put("k", "same", None)]]))["k"]
    assert again != first
    with pytest.raises(WriteConflictError):
        await store.write([[Delete("k", first)]])


async def test_documents_of_a_megabyte_fit(store: MetadataStore) -> None:
    text = "x" * 1_000_000
    await store.write([[Put("topic/big", text, None)]])
    assert (await store.read_all())["topic/big"].text == text


async def test_stages_are_all_carried_out(store: MetadataStore) -> None:
    first = await store.write([[Put("a", "1", None)], [Put("b", "1", None)]])
    await store.write(
        [[Put("c", "1", None)], [Put("b", "2", first["b"])], [Delete("a", first["a"])]]
    )
    assert {key: stored.text for key, stored in (await store.read_all()).items()} == {
        "b": "2",
        "c": "1",
    }


async def test_documents_survive_a_restart(subject: Subject) -> None:
    versions = await subject.store.write([[Put("a", "1", None), Put("b", "1", None)]])
    versions = {**versions, **await subject.store.write([[Put("b", "2", versions["b"])]])}
    store = subject.reopen()
    assert {key: (s.text, s.version) for key, s in (await store.read_all()).items()} == {
        "a": ("1", versions["a"]),
        "b": ("2", versions["b"]),
    }
    await store.write([[Put("a", "2", versions["a"])]])


# ---------------------------------------------------------------- conflicts


@pytest.mark.parametrize(
    "change",
    [
        Put("k", "new", None),
        Put("k", "new", "not the version"),
        Delete("k", "not the version"),
        Put("other", "new", "not there"),
        Delete("other", "not there"),
    ],
)
async def test_a_wrong_version_is_a_conflict_and_changes_nothing_there(
    store: MetadataStore, change: Any
) -> None:
    await store.write([[Put("k", "old", None)]])
    before = await store.read_all()
    with pytest.raises(WriteConflictError, match=change.key):
        await store.write([[change]])
    assert await store.read_all() == before


async def test_of_two_writers_with_the_same_version_one_wins(subject: Subject) -> None:
    version = (await subject.store.write([[Put("k", "0", None)]]))["k"]
    rival = subject.another_client() if subject.another_client else subject.store
    await rival.write([[Put("k", "rival", version)]])
    with pytest.raises(WriteConflictError):
        await subject.store.write([[Put("k", "mine", version)]])
    assert (await subject.store.read_all())["k"].text == "rival"


async def test_later_stages_do_not_happen_after_a_conflict(store: MetadataStore) -> None:
    with pytest.raises(WriteConflictError):
        await store.write([[Put("a", "1", "wrong")], [Put("b", "1", None)]])
    assert "b" not in await store.read_all()


# ---------------------------------------------------------------- lease


async def test_the_holder_renews_its_lease(store: MetadataStore) -> None:
    assert await store.acquire_lease("me", 10_000)
    assert await store.acquire_lease("me", 10_000)
    await store.release_lease("me")
    await store.release_lease("me")
    await store.release_lease("somebody else")


async def test_a_lease_is_one_controllers_until_it_ends(subject: Subject) -> None:
    if subject.another_client is None:
        pytest.skip("one process at a time")
    rival = subject.another_client()
    assert await subject.store.acquire_lease("me", 10_000)
    assert not await rival.acquire_lease("rival", 10_000)
    await rival.release_lease("rival")
    assert not await rival.acquire_lease("rival", 10_000), "only the holder can release it"
    subject.pass_time(10_001)
    assert await rival.acquire_lease("rival", 10_000)
    assert not await subject.store.acquire_lease("me", 10_000)
    await rival.release_lease("rival")
    assert await subject.store.acquire_lease("me", 10_000)


# ---------------------------------------------------------------- of one implementation each


def test_memory_plants_lost_requests_and_lost_answers() -> None:
    store = MemoryMetadataStore(SharedDocuments(lambda: 0))
    store.fail_next = Failure.LOST
    with pytest.raises(StoreUnavailableError):
        store.write([[Put("k", "1", None)]])
    assert store.read_all() == {}
    store.fail_next = Failure.UNANSWERED
    with pytest.raises(StoreUnavailableError):
        store.write([[Put("k", "1", None)]])
    assert store.read_all()["k"].text == "1"


def test_local_refuses_a_directory_in_use(tmp_path: Path) -> None:
    first = LocalMetadataStore(tmp_path / "m")
    with pytest.raises(StoreUnavailableError, match="in use by another controller"):
        LocalMetadataStore(tmp_path / "m")
    first.close()
    LocalMetadataStore(tmp_path / "m").close()


def test_local_refuses_a_path_that_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailableError, match="--metadata-dir"):
        LocalMetadataStore(tmp_path / "file")


def test_local_writes_of_several_documents_are_all_or_nothing(tmp_path: Path) -> None:
    store = LocalMetadataStore(tmp_path / "m")
    with pytest.raises(WriteConflictError):
        store.write([[Put("a", "1", None)], [Put("b", "1", "wrong")]])
    assert store.read_all() == {}
    store.close()
