"""What a controller awaits of its store: who waits for whom, and what a cancelled call leaves.

JournaledStore ─▶ ThreadedStore ─▶ Gated: a store in memory whose writes wait at a gate
      └─▶ Brokers: three that keep journals, whose answers wait at another
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from threading import Event
from typing import Any

import pytest
from support.controller_seams import threaded
from support.waiting import wait_until_async

from penstock.core.control.documents import (
    CLUSTER_KEY,
    BrokerRegistration,
    ClusterDocument,
    TopicDocument,
    encode_cluster,
    encode_topic,
)
from penstock.core.control.journal.contract import AskKeep, AskPromises, Journal, Kept, Promises
from penstock.core.control.journal.holder import JournalHolder
from penstock.core.types import BrokerId, ControllerEpoch, TopicId
from penstock_broker.controller.metadata_store.interface import (
    Change,
    MetadataStore,
    Put,
    StoredText,
    StoreUnavailableError,
)
from penstock_broker.controller.metadata_store.journaled import JournaledStore
from penstock_broker.controller.metadata_store.memory import MemoryMetadataStore, SharedDocuments
from penstock_broker.controller.metadata_store.threaded import ThreadedStore


class Gated(MemoryMetadataStore):
    """Its writes wait while `gate` is closed; it can be away."""

    def __init__(self, documents: SharedDocuments) -> None:
        super().__init__(documents)
        self.gate = Event()
        self.gate.set()
        self.began = 0
        self.away = False

    def read_all(self) -> dict[str, StoredText]:
        if self.away:
            raise StoreUnavailableError("planted: away")
        return super().read_all()

    def write(self, stages: Sequence[Sequence[Change]]) -> Mapping[str, str]:
        self.began += 1
        self.gate.wait(600.0)
        return super().write(stages)

    def acquire_lease(self, holder: str, duration_ms: int) -> bool:
        if self.away:
            raise StoreUnavailableError("planted: away")
        return super().acquire_lease(holder, duration_ms)


class Brokers:
    """All three answer, once the gate is open."""

    def __init__(self) -> None:
        self.holders = [JournalHolder() for _ in range(3)]
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = 0

    async def promise(self, ask: AskPromises) -> Promises:
        promised = self._all(lambda one: one.promise(ask.epoch))
        return Promises({BrokerId(n): journal for n, (_, journal) in enumerate(promised)})

    async def keep(self, ask: AskKeep) -> Kept:
        self.asked += 1
        await self.gate.wait()
        return Kept(len(self._all(lambda one: one.keep(ask.journal))))

    def _all(self, take: Callable[[JournalHolder], JournalHolder | None]) -> list[Any]:
        after = [take(one) for one in self.holders]
        assert None not in after, "nobody else takes over in these tests"
        self.holders = [one for one in after if one is not None]
        return [(one.promised, one.journal) for one in self.holders]

    @property
    def kept(self) -> Mapping[str, str]:
        """The texts in their journals."""
        return self.holders[0].journal.documents


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
async def gated(documents: SharedDocuments) -> AsyncIterator[Gated]:
    made = Gated(documents)
    yield made
    made.gate.set()


@pytest.fixture
async def plain(gated: Gated) -> AsyncIterator[ThreadedStore]:
    with threaded(gated) as store:
        yield store
        gated.gate.set()


@pytest.fixture
async def journaled(plain: ThreadedStore, brokers: Brokers) -> JournaledStore:
    """Of a controller that has taken over."""
    return await taken_over(JournaledStore(plain, brokers))


async def taken_over(store: JournaledStore) -> JournaledStore:
    found = await store.read_all(take_over=True)
    before = found.get(CLUSTER_KEY)
    epoch = 1 if before is None else int(before.text.partition('epoch":')[2].partition(",")[0]) + 1
    version = None if before is None else before.version
    await store.write([[Put(CLUSTER_KEY, cluster(epoch), version)]])
    return store


def cluster(epoch: int) -> str:
    return encode_cluster(
        ClusterDocument(
            cluster_id="c",
            controller_epoch=ControllerEpoch(epoch),
            metadata_version=1000 * epoch,
            brokers={
                BrokerId(number): BrokerRegistration(
                    broker_id=BrokerId(number),
                    host="127.0.0.1",
                    port=9000 + number,
                    rack="",
                    directory_id=f"dir-{number}",
                    incarnation="run",
                    alive=True,
                )
                for number in range(3)
            },
        )
    )


def text(version: int, what: str = "", name: str = "t") -> str:
    """Of a topic, with a setting that tells it from others."""
    return encode_topic(
        TopicDocument(
            name=name,
            topic_id=TopicId(f"id-of-{name}"),
            controller_epoch=ControllerEpoch(1),
            metadata_version=version,
            configs={"what": what},
            partitions=(),
        )
    )


async def cancelled(call: Awaitable[Any], when: Callable[[], object]) -> None:
    """Gives the call up once `when` holds."""

    async def run() -> Any:
        return await call

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(run())
        await wait_until_async(when, what="the call is under way")
        task.cancel()
    assert task.cancelled()


# ---------------------------------------------------------------- threads


@pytest.mark.parametrize("kind", ["plain", "journaled"])
async def test_a_write_that_takes_long_does_not_delay_the_lease(
    plain: ThreadedStore, journaled: JournaledStore, gated: Gated, kind: str
) -> None:
    store: MetadataStore = plain if kind == "plain" else journaled
    gated.gate.clear()
    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(store.write([[Put("topic/t", text(1), None)]]))
        try:
            assert await store.acquire_lease("me", 10_000)
            await store.release_lease("me")
            assert not writing.done()
        finally:
            gated.gate.set()
    assert writing.result()["topic/t"]


async def test_what_follows_a_write_that_was_given_up_waits_for_it(
    plain: ThreadedStore, gated: Gated
) -> None:
    gated.gate.clear()
    write = plain.write([[Put("topic/t", text(1), None)]])
    await cancelled(write, lambda: gated.began)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(plain.read_all())
        assert await plain.acquire_lease("me", 10_000)
        assert not reading.done()
        gated.gate.set()
    assert "topic/t" in reading.result()


# ---------------------------------------------------------------- journals


async def test_brokers_stand_in_for_the_lease_beside_a_write_that_hangs(
    journaled: JournaledStore, gated: Gated, brokers: Brokers
) -> None:
    gated.gate.clear()
    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(journaled.write([[Put("topic/t", text(1), None)]]))
        await wait_until_async(lambda: gated.began == 2, what="the write hangs")
        assert await journaled.hold()
        assert not writing.done()
        gated.gate.set()
    assert not journaled.detached


async def test_changes_of_two_callers_are_both_in_the_journal(
    journaled: JournaledStore, gated: Gated, brokers: Brokers
) -> None:
    gated.away = True
    assert await journaled.hold()
    brokers.gate.clear()
    async with asyncio.TaskGroup() as tasks:
        for name in ("a", "b"):
            tasks.create_task(journaled.write([[Put(f"topic/{name}", text(1, name=name), None)]]))
        await wait_until_async(lambda: brokers.asked > 1, what="the first is under way")
        brokers.gate.set()
    assert brokers.kept.keys() == {"topic/a", "topic/b"}


async def test_a_hold_that_was_given_up_says_nothing(
    journaled: JournaledStore, gated: Gated, brokers: Brokers
) -> None:
    brokers.gate.clear()
    await cancelled(journaled.hold(), lambda: brokers.asked)
    brokers.gate.set()
    await journaled.write([[Put("topic/t", text(1), None)]])
    assert not journaled.detached, "the store has it"
    gated.away = True
    assert await journaled.hold()
    await journaled.write([[Put("topic/u", text(1, name="u"), None)]])
    assert journaled.detached
    assert brokers.kept.keys() == {"topic/u"}


async def test_a_write_that_was_given_up_and_passes_late_is_not_what_counts(
    journaled: JournaledStore, gated: Gated, brokers: Brokers, documents: SharedDocuments
) -> None:
    """The store is away, the controller goes on with its brokers, and then the write arrives."""
    versions = await journaled.write([[Put("topic/t", text(1, "known"), None)]])
    gated.gate.clear()
    late = Put("topic/t", text(2, "late"), versions["topic/t"])
    await cancelled(journaled.write([[late]]), lambda: gated.began == 3)
    gated.away = True
    assert await journaled.hold()
    await journaled.write([[Put("topic/u", text(1, name="u"), None)]])
    gated.gate.set()
    await wait_until_async(
        lambda: "late" in documents.documents["topic/t"].text, what="the write arrives"
    )
    gated.away = False
    with threaded(gated) as store:
        found = await JournaledStore(store, brokers).read_all(take_over=True)
    assert "known" in found["topic/t"].text
    assert "topic/u" in found


async def test_the_log_names_the_broker_whose_journal_is_not_adopted(
    journaled: JournaledStore,
    gated: Gated,
    brokers: Brokers,
    caplog: pytest.LogCaptureFixture,
) -> None:
    gated.away = True
    assert await journaled.hold()
    await journaled.write([[Put("topic/t", text(1, "decided"), None)]])
    gated.away = False
    journal = brokers.holders[1].journal
    forged = Journal(journal.controller_epoch, 2**60, {"topic/t": "{}"})
    brokers.holders[1] = JournalHolder(journal.controller_epoch, forged)
    with threaded(gated) as store:
        found = await JournaledStore(store, brokers).read_all(take_over=True)
    assert "decided" in found["topic/t"].text
    (record,) = [one for one in caplog.records if "is not adopted" in one.message]
    assert record.__dict__["fields"]["broker"] == 1
    assert "document 'topic/t'" in record.__dict__["fields"]["reason"]


async def test_a_change_that_was_given_up_while_brokers_were_asked_is_outdone_by_the_next(
    journaled: JournaledStore, gated: Gated, brokers: Brokers
) -> None:
    """Some broker may keep it: what is decided instead must be newer."""
    await journaled.write([[Put("topic/t", text(1, "known"), None)]])
    gated.away = True
    assert await journaled.hold()
    await journaled.write([[Put("topic/u", text(1, name="u"), None)]])
    asked = brokers.asked
    brokers.gate.clear()
    read = await journaled.read_all()
    given_up = Put("topic/t", text(5, "given up"), read["topic/t"].version)
    await cancelled(journaled.write([[given_up]]), lambda: brokers.asked > asked)
    brokers.gate.set()
    assert "known" in (await journaled.read_all())["topic/t"].text
    assert "known" in brokers.kept["topic/t"]
    assert brokers.holders[0].journal.sequence > 2
