"""The journal on the brokers: what counts, what a take-over learns, what a late write may not."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from support.defects import PlantedError, every_line

from penstock.core.control.documents import (
    CLUSTER_KEY,
    BrokerRegistration,
    ClusterDocument,
    TopicDocument,
    encode_cluster,
    encode_topic,
    topic_key,
)
from penstock.core.control.journal.contract import (
    AskKeep,
    AskPromises,
    Journal,
    Kept,
    Promises,
    ReadStore,
    WriteStore,
)
from penstock.core.control.journal.documents import metadata_version, missing
from penstock.core.control.journal.holder import JournalHolder
from penstock.core.control.journal.proposer import JournaledDocuments, Steps
from penstock.core.control.storage import (
    Delete,
    Put,
    StoredText,
    StoreUnavailableError,
    WriteConflictError,
)
from penstock.core.types import BrokerId, ControllerEpoch, TopicId
from penstock.errors import ClusterError, PenstockError

T = topic_key("t")


def cluster(epoch: int, version: int, brokers: int = 3) -> str:
    found = {
        BrokerId(number): BrokerRegistration(
            broker_id=BrokerId(number),
            host="127.0.0.1",
            port=9000 + number,
            rack="",
            directory_id=f"dir-{number}",
            incarnation="run",
            alive=True,
        )
        for number in range(brokers)
    }
    return encode_cluster(
        ClusterDocument(
            cluster_id="c",
            controller_epoch=ControllerEpoch(epoch),
            metadata_version=version,
            brokers=found,
        )
    )


def topic(version: int, name: str = "t", **configs: str) -> str:
    topic_id = TopicId(f"id-of-{name}")
    return encode_topic(
        TopicDocument(
            name=name,
            topic_id=topic_id,
            controller_epoch=ControllerEpoch(1),
            metadata_version=version,
            configs=configs,
            partitions=(),
        )
    )


class World:
    """A store and three holders that answer at once; any of them can be away."""

    def __init__(self, brokers: int = 3) -> None:
        self.stored = {CLUSTER_KEY: StoredText(cluster(1, 1, brokers), "v1")}
        self.holders = {number: JournalHolder() for number in range(brokers)}
        self.down: set[int] = set()
        self.away = False
        self.unanswered = False
        self.asked: list[object] = []
        self._versions = 1

    def drive(self, steps: Steps[Any]) -> Any:
        """Runs to the end; raises what the proposer raises."""
        try:
            ask = next(steps)
            while True:
                self.asked.append(ask)
                try:
                    answer = self._answer(ask)
                except PenstockError as error:
                    ask = steps.throw(error)
                else:
                    ask = steps.send(answer)
        except StopIteration as done:
            return done.value

    def _answer(self, ask: object) -> object:
        match ask:
            case ReadStore():
                if self.away:
                    raise StoreUnavailableError("away")
                return dict(self.stored)
            case WriteStore(stages):
                if self.away:
                    raise StoreUnavailableError("away")
                versions = self.apply([change for stage in stages for change in stage])
                if self.unanswered:
                    raise StoreUnavailableError("no answer")
                return versions
            case AskPromises():
                return self._promises(ask)
            case _:
                assert isinstance(ask, AskKeep)
                return self._kept(ask)

    def apply(self, changes: list[Put | Delete]) -> Mapping[str, str]:
        versions = {}
        for change in changes:
            found = self.stored.get(change.key)
            if (None if found is None else found.version) != change.expected:
                raise WriteConflictError(change.key, change.expected, None)
            if isinstance(change, Put):
                self._versions += 1
                versions[change.key] = f"v{self._versions}"
                self.stored[change.key] = StoredText(change.text, versions[change.key])
            else:
                del self.stored[change.key]
        return versions

    def _up(self) -> list[int]:
        return [number for number in self.holders if number not in self.down]

    def _promises(self, ask: AskPromises) -> Promises:
        journals: dict[BrokerId, Journal] = {}
        asked = {int(one.broker_id) for one in ask.holders.brokers}
        for number in [each for each in self._up() if each in asked][: ask.holders.majority]:
            after = self.holders[number].promise(ask.epoch)
            if after is None:
                return Promises(journals, refused=True)
            self.holders[number] = after
            journals[BrokerId(number)] = after.journal
        return Promises(journals)

    def _kept(self, ask: AskKeep) -> Kept:
        count = 0
        for number in self._up():
            after = self.holders[number].keep(ask.journal)
            if after is None:
                return Kept(count, refused=True)
            self.holders[number] = after
            count += 1
        return Kept(count)


@pytest.fixture
def world() -> World:
    return World()


def take_over(world: World, documents: JournaledDocuments) -> dict[str, StoredText]:
    """Reads, then raises the epoch in the store."""
    documents.begin_take_over()
    found: dict[str, StoredText] = world.drive(documents.read())
    stored = found[CLUSTER_KEY]
    epoch = metadata_version(stored.text) + 100
    brokers = len(world.holders)
    text = cluster(_epoch(stored.text) + 1, epoch, brokers)
    world.drive(documents.write([[Put(CLUSTER_KEY, text, stored.version)]]))
    taken_over: dict[str, StoredText] = world.drive(documents.read())
    return taken_over


def _epoch(text: str) -> int:
    return int(text.partition('"controller_epoch":')[2].partition(",")[0])


def detached(world: World) -> JournaledDocuments:
    """A controller that has taken over and goes on without its store."""
    documents = JournaledDocuments()
    take_over(world, documents)
    world.away = True
    assert world.drive(documents.hold())
    return documents


# ---------------------------------------------------------------- holders


def test_a_holder_keeps_the_newest_and_refuses_what_is_older_than_its_promise() -> None:
    old, new = Journal(ControllerEpoch(2), 5, {"k": "old"}), Journal(ControllerEpoch(3), 1)
    holder = JournalHolder().keep(old)
    assert holder is not None
    assert holder.keep(Journal(ControllerEpoch(2), 4)) == holder
    promised = holder.promise(ControllerEpoch(3))
    assert promised is not None
    assert promised.journal == old
    assert promised.keep(Journal(ControllerEpoch(2), 6)) is None
    assert promised.promise(ControllerEpoch(2)) is None
    after = promised.keep(new)
    assert after is not None
    assert after.journal == new


def test_only_what_the_store_lacks_is_missing_and_the_cluster_comes_last() -> None:
    journal = Journal(
        ControllerEpoch(1),
        3,
        {CLUSTER_KEY: cluster(1, 9), T: topic(8), topic_key("u"): topic(4, "u")},
        {topic_key("gone"): 7, topic_key("again"): 7},
    )
    found = {
        CLUSTER_KEY: StoredText(cluster(1, 2), "c"),
        topic_key("u"): StoredText(topic(4, "u"), "u"),
        topic_key("gone"): StoredText(topic(6, "gone"), "g"),
        topic_key("again"): StoredText(topic(8, "again"), "a"),
    }
    assert missing(journal, found) == [
        [Put(T, topic(8), None)],
        [Delete(topic_key("gone"), "g")],
        [Put(CLUSTER_KEY, cluster(1, 9), "c")],
    ]


# ---------------------------------------------------------------- while the store is away


def test_changes_are_kept_and_read_back_while_the_store_is_away(world: World) -> None:
    documents = detached(world)
    version = world.drive(documents.write([[Put(T, topic(200), None)]]))[T]
    assert world.drive(documents.read())[T] == StoredText(topic(200), version)
    again = world.drive(documents.write([[Put(T, topic(201), version)]]))[T]
    assert again != version
    with pytest.raises(WriteConflictError):
        world.drive(documents.write([[Put(T, topic(202), version)]]))
    world.drive(documents.write([[Delete(T, again)]]))
    assert T not in world.drive(documents.read())
    assert not world.holders[0].journal.documents
    assert list(world.holders[0].journal.removed) == [T]
    assert T not in world.stored


def test_nothing_is_journaled_before_a_majority_was_asked(world: World) -> None:
    documents = JournaledDocuments()
    take_over(world, documents)
    world.away = True
    with pytest.raises(StoreUnavailableError, match="away"):
        world.drive(documents.write([[Put(T, topic(200), None)]]))
    assert not documents.detached
    assert all(not holder.journal.documents for holder in world.holders.values())


def test_without_a_majority_nothing_counts(world: World) -> None:
    documents = detached(world)
    world.down = {0, 1}
    with pytest.raises(
        StoreUnavailableError, match=r"1 of 3 brokers have stored the change \(2 must"
    ):
        world.drive(documents.write([[Put(T, topic(200), None)]]))
    assert not world.drive(documents.hold())
    world.down = {0}
    assert world.drive(documents.write([[Put(T, topic(201), None)]]))


def test_a_controller_that_was_succeeded_keeps_nothing_more(world: World) -> None:
    documents = detached(world)
    world.away = False
    take_over(world, JournaledDocuments())
    world.away = True
    with pytest.raises(StoreUnavailableError, match="follows another controller"):
        world.drive(documents.write([[Put(T, topic(300), None)]]))
    assert not world.drive(documents.hold())


# ---------------------------------------------------------------- taking over


@pytest.mark.parametrize("down", [0, 1, 2])
def test_a_take_over_learns_what_counts_from_any_majority(world: World, down: int) -> None:
    documents = detached(world)
    world.drive(documents.write([[Put(T, topic(200), None)]]))
    world.away, world.down = False, {down}
    found = take_over(world, JournaledDocuments())
    assert found[T].text == topic(200)
    assert world.stored[T].text == topic(200)


def test_a_take_over_waits_for_a_majority(world: World) -> None:
    world.down = {0, 2}
    with pytest.raises(StoreUnavailableError, match="1 of 3 registered brokers have reported"):
        take_over(world, JournaledDocuments())


def test_most_brokers_lost_for_good_need_not_answer_if_somebody_says_so(world: World) -> None:
    world.down = {0, 2}
    take_over(world, JournaledDocuments(takeover_min_brokers=1))
    world.down = {0, 1, 2}
    with pytest.raises(StoreUnavailableError, match=r"controller\.takeover\.min\.brokers"):
        take_over(world, JournaledDocuments(takeover_min_brokers=1))


class Meanwhile(World):
    """The controller before stores something while brokers promise to follow the next one."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__()
        self._change = Put(key, text, self.stored[key].version if key in self.stored else None)

    def _promises(self, ask: AskPromises) -> Promises:
        self.apply([self._change])
        return super()._promises(ask)


def test_a_take_over_knows_what_brokers_were_told_before_they_promised() -> None:
    """A leader that has heard of a smaller ISR commits without the others."""
    world = Meanwhile(T, topic(2))
    documents = JournaledDocuments()
    documents.begin_take_over()
    assert world.drive(documents.read())[T].text == topic(2)


def test_a_take_over_begins_again_where_the_cluster_changed_while_brokers_promised() -> None:
    world = Meanwhile(CLUSTER_KEY, cluster(1, 2))
    documents = JournaledDocuments()
    documents.begin_take_over()
    with pytest.raises(
        StoreUnavailableError, match="the cluster changed while brokers gave their promises"
    ):
        world.drive(documents.read())


@pytest.mark.parametrize("brokers", [0, 1, 2])
def test_without_three_brokers_there_is_no_journal_and_nobody_to_wait_for(brokers: int) -> None:
    world = World(brokers)
    world.down = set(range(brokers))
    documents = JournaledDocuments()
    take_over(world, documents)
    assert not world.drive(documents.hold())
    assert not [ask for ask in world.asked if isinstance(ask, AskPromises | AskKeep)]


def test_the_store_that_is_back_belongs_to_the_next_take_over(world: World) -> None:
    documents = detached(world)
    world.drive(documents.write([[Put(T, topic(200), None)]]))
    world.away = False
    documents.lease_answered()
    for late in (documents.read(), documents.write([[Put(T, topic(201), None)]])):
        with pytest.raises(StoreUnavailableError, match="is taking over again"):
            world.drive(late)
    found = take_over(world, documents)
    assert found[T].text == topic(200)
    assert not documents.detached


def test_what_no_majority_kept_is_void_after_the_next_take_over(world: World) -> None:
    documents = detached(world)
    world.down = {1, 2}
    with pytest.raises(StoreUnavailableError):
        world.drive(documents.write([[Put(T, topic(200), None)]]))
    world.away, world.down = False, {0}
    take_over(world, JournaledDocuments())  # it cannot know of it
    world.down = {1}
    found = take_over(world, JournaledDocuments())  # this one is told, but too late
    assert T not in found


def test_what_is_decided_after_a_failed_attempt_is_newer_than_it(world: World) -> None:
    """A broker may have kept the attempt, and a take-over may have stored it already."""
    documents = detached(world)
    first = world.drive(documents.write([[Put(T, topic(200), None)]]))[T]
    world.down = {1, 2}
    attempt = [
        [Put(T, topic(201, retention="attempt"), first), Put("topic/u", topic(201, "u"), None)]
    ]
    with pytest.raises(StoreUnavailableError):
        world.drive(documents.write(attempt))
    world.down = set()
    found = world.drive(documents.read())
    assert metadata_version(found[T].text) > 201
    assert "topic/u" not in found
    journal = world.holders[1].journal
    world.stored[T] = StoredText(attempt[0][0].text, "v")
    world.stored["topic/u"] = StoredText(attempt[0][1].text, "v")
    after = [change for stage in missing(journal, world.stored) for change in stage]
    assert Put(T, found[T].text, "v") in after
    assert Delete("topic/u", "v") in after


# ---------------------------------------------------------------- writes without an answer


def late(world: World, change: Put) -> Callable[[], object]:
    """The write that was not answered, to be carried out now."""
    return lambda: world.apply([change])


def test_a_late_write_cannot_win_over_the_journal(world: World) -> None:
    documents = JournaledDocuments()
    take_over(world, documents)
    first = world.drive(documents.write([[Put(T, topic(150), None)]]))[T]
    world.away = True
    change = Put(T, topic(151, retention="limbo"), first)
    with pytest.raises(StoreUnavailableError):
        world.drive(documents.write([[change]]))
    world.drive(documents.hold())
    found = world.drive(documents.read())
    assert metadata_version(found[T].text) > 151
    late(world, change)()
    world.away = False
    after = take_over(world, JournaledDocuments())
    assert after[T].text == found[T].text


def test_what_is_in_doubt_becomes_newer_than_all_that_was_stored_since(world: World) -> None:
    documents = JournaledDocuments()
    take_over(world, documents)
    first = world.drive(documents.write([[Put(T, topic(150), None)]]))[T]
    world.away = True
    with pytest.raises(StoreUnavailableError):
        world.drive(documents.write([[Put(T, topic(151), first)]]))
    world.away = False
    world.drive(documents.write([[Put(topic_key("u"), topic(160, "u"), None)]]))
    world.away = True
    world.drive(documents.hold())
    assert metadata_version(world.drive(documents.read())[T].text) == 161


def test_a_topic_of_a_late_write_that_nobody_was_told_of_goes(world: World) -> None:
    documents = JournaledDocuments()
    take_over(world, documents)
    world.away = True
    change = Put(T, topic(151), None)
    with pytest.raises(StoreUnavailableError):
        world.drive(documents.write([[change]]))
    world.drive(documents.hold())
    assert T not in world.drive(documents.read())
    late(world, change)()
    world.away = False
    assert T not in take_over(world, JournaledDocuments())


def test_no_journal_while_it_is_uncertain_who_is_registered(world: World) -> None:
    documents = JournaledDocuments()
    found = take_over(world, documents)
    world.away = True
    more = Put(CLUSTER_KEY, cluster(2, 300, brokers=5), found[CLUSTER_KEY].version)
    with pytest.raises(StoreUnavailableError):
        world.drive(documents.write([[more]]))
    assert not world.drive(documents.hold())
    world.away = False
    world.drive(documents.read())
    world.apply([Put(CLUSTER_KEY, cluster(2, 301), found[CLUSTER_KEY].version)])
    world.drive(documents.read())
    world.away = True
    assert world.drive(documents.hold()), "read again: nothing is uncertain any more"


def test_an_answer_that_was_lost_is_read_again_while_the_store_is_there(world: World) -> None:
    documents = JournaledDocuments()
    take_over(world, documents)
    world.unanswered = True
    with pytest.raises(StoreUnavailableError):
        world.drive(documents.write([[Put(T, topic(150), None)]]))
    world.unanswered = False
    assert world.drive(documents.read())[T].text == topic(150)
    world.away = True
    world.drive(documents.hold())
    assert world.drive(documents.read())[T].text == topic(150)


# ---------------------------------------------------------------- defects


def attached(world: World) -> JournaledDocuments:
    """A controller that has taken over, with its store."""
    documents = JournaledDocuments()
    take_over(world, documents)
    return documents


def journaling(world: World) -> JournaledDocuments:
    """A controller without its store, and with a change in its journal."""
    documents = detached(world)
    world.drive(documents.write([[Put(T, topic(3), None)]]))
    return documents


OPERATIONS: list[Callable[[JournaledDocuments], Steps[Any]]] = [
    lambda documents: documents.read(),
    lambda documents: documents.write([[Put(topic_key("u"), topic(4, "u"), None)]]),
    lambda documents: documents.hold(),
]


@pytest.mark.parametrize("scene", [attached, detached, journaling])
@pytest.mark.parametrize("operation", OPERATIONS, ids=["read", "write", "hold"])
def test_a_defect_at_any_line_of_the_proposer_ends_it(
    scene: Callable[[World], JournaledDocuments],
    operation: Callable[[JournaledDocuments], Steps[Any]],
) -> None:
    for plant in every_line("control/journal/proposer.py", "_guarded", "read", "write", "hold"):
        world = World()
        documents = scene(world)
        with plant, contextlib.suppress(ClusterError):
            world.drive(operation(documents))
        if not plant.struck:
            assert documents.error is None
            continue
        assert documents.error is not None, "it stopped"
        assert isinstance(documents.error.__cause__, PlantedError)
        kept, stored = dict(world.holders), dict(world.stored)
        for later in OPERATIONS:
            with pytest.raises(ClusterError) as refused:
                world.drive(later(documents))
            assert refused.value is documents.error
        assert (world.holders, world.stored) == (kept, stored), "nobody is asked any more"


def test_what_was_under_way_beside_a_defect_is_not_believed(world: World) -> None:
    documents = attached(world)
    held = documents.hold()
    next(held)
    for plant in every_line("control/journal/proposer.py", "_guarded", "read", "write", "hold"):
        with plant, pytest.raises(ClusterError):
            world.drive(documents.read())
        break
    with pytest.raises(ClusterError) as refused:
        held.send(Kept(3))
    assert refused.value is documents.error


def test_a_defect_of_a_holder_leaves_what_it_keeps() -> None:
    journal = Journal(ControllerEpoch(2), 5, {"k": "kept"})
    holder = JournalHolder().keep(journal)
    for ask in ("promise", "keep"):
        for plant in every_line("control/journal/holder.py"):
            argument = ControllerEpoch(3) if ask == "promise" else Journal(ControllerEpoch(3), 1)
            with plant, contextlib.suppress(PlantedError):
                getattr(holder, ask)(argument)
            assert holder == JournalHolder(ControllerEpoch(2), journal)


# ---------------------------------------------------------------- journals that nobody wrote


FORGED = {
    "cannot be decoded": {T: '{"metadata_version": 9000}'},
    "another cluster": {CLUSTER_KEY: cluster(2, 9000).replace('"c"', '"d"')},
    "another topic's id": {topic_key("u"): topic(9000).replace('"name":"t"', '"name":"u"')},
    "a version out of reach": {T: topic(2**60)},
}


def forge(world: World, number: int, documents: Mapping[str, str]) -> None:
    """In the file of one broker, after the controller's own journal."""
    holder = world.holders[number]
    forged = Journal(ControllerEpoch(2), 2**60, {**holder.journal.documents, **documents})
    world.holders[number] = JournalHolder(holder.promised, forged)


def after_an_outage(world: World) -> JournaledDocuments:
    """What `v` is was decided without the store, and a majority keeps it."""
    old = detached(world)
    found = world.drive(old.read())
    expected = found[T].version if T in found else None
    world.drive(old.write([[Put(T, topic(300, v="decided"), expected)]]))
    world.away = False
    return JournaledDocuments()


@pytest.mark.parametrize("documents", FORGED.values(), ids=FORGED)
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_forged_journal_is_not_adopted_and_others_are_asked(
    world: World, documents: Mapping[str, str], number: int
) -> None:
    documents_of = after_an_outage(world)
    forge(world, number, documents)
    found = take_over(world, documents_of)
    assert found[T].text == topic(300, v="decided")
    assert set(found) == {CLUSTER_KEY, T}
    # Only who answered in time has been read; 2 was not needed.
    assert set(documents_of.distrusted) == ({BrokerId(number)} if number < 2 else set())


def test_without_a_majority_of_good_journals_it_waits_and_says_for_whom(world: World) -> None:
    documents = after_an_outage(world)
    before = dict(world.stored)
    for number in (0, 1):
        forge(world, number, FORGED["cannot be decoded"])
    for _ in range(2):
        with pytest.raises(StoreUnavailableError) as caught:
            take_over(world, documents)
        assert "1 of 3 registered brokers" in caught.value.message
        assert "what broker 0, broker 1 kept cannot be used" in caught.value.message
    assert world.stored == before
    world.holders[0] = JournalHolder()
    assert take_over(world, documents)[T].text == topic(300, v="decided")


def test_a_broker_that_is_away_does_not_make_a_forged_journal_count(world: World) -> None:
    documents = after_an_outage(world)
    forge(world, 0, FORGED["another cluster"])
    world.down = {2}
    with pytest.raises(StoreUnavailableError, match="what broker 0 kept cannot be used"):
        take_over(world, documents)
    world.down = set()
    assert take_over(world, documents)[T].text == topic(300, v="decided")


def test_a_damaged_journal_of_an_older_epoch_is_nothing_to_worry_about(world: World) -> None:
    documents = after_an_outage(world)
    old = Journal(ControllerEpoch(1), 5, FORGED["cannot be decoded"])
    world.holders[0] = JournalHolder(world.holders[0].promised, old)
    assert take_over(world, documents)[T].text == topic(300, v="decided")
    assert not documents.distrusted
