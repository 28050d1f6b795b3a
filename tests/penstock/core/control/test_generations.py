"""A data directory that is older than what the cluster knows is not believed (I7)."""

import json
from typing import Any

import pytest
from support.controller_world import Documents, World

from penstock.core.control import contract as c
from penstock.core.control import move_contract as m
from penstock.core.control.documents import CLUSTER_KEY, decode_cluster, encode_cluster
from penstock.core.limits import GENERATIONS_MAX
from penstock.core.types import NO_LEADER, BrokerId
from penstock.errors import ErrorCode, PenstockError, StaleDataDirectoryError


def generation(world: World, broker_id: int = 0) -> str:
    return world.cluster().brokers[BrokerId(broker_id)].generation


def register(world: World, run: int, *generations: str, **changes: Any) -> int:
    return world.register(0, run=run, generations=generations, **changes)


def stale(world: World, run: int, *generations: str, intact: bool = True) -> str:
    """Broker 0 is refused; returns the generation that the refusal names."""
    error = world.refusal(register(world, run, *generations, data_intact=intact))
    assert isinstance(error, StaleDataDirectoryError), error
    assert error.code is ErrorCode.STALE_DATA_DIRECTORY
    assert not error.retriable
    return error.generation


def wants_stop(world: World, generation: str) -> None:
    stream_id = world.streams[0]
    world.step(
        c.HeartbeatReceived(
            stream_id=stream_id, metadata_version=0, wants_stop=True, generation=generation
        )
    )


def may_stop(world: World) -> bool:
    answers = world.messages[world.streams[0]]
    return any(isinstance(one, c.HeartbeatAnswered) and one.may_stop for one in answers)


def started(documents: Documents | None = None) -> World:
    """Three brokers in their second run, and topic t on all of them."""
    world = World(documents).start()
    for broker_id in range(3):
        world.register(broker_id, generations=("first", "second"))
    world.create(partitions=1, replication_factor=3)
    return world


def test_the_newest_generation_of_a_registration_is_stored_and_read_back() -> None:
    world = started()
    text = encode_cluster(world.cluster())
    assert text.count('"generation":"second"') == 3
    assert decode_cluster(text, "c") == world.cluster()


def test_documents_of_brokers_that_name_none_stay_as_they_were(three: World) -> None:
    text = encode_cluster(three.cluster())
    assert "generation" not in text
    assert decode_cluster(text, "c").brokers[BrokerId(0)].generation == ""


@pytest.mark.parametrize(
    "known",
    [
        ("second", "third"),
        ("first", "second", "third"),  # the answer to the last registration was lost
        ("second", "in vain", "also in vain", "third"),
    ],
)
def test_the_next_run_is_believed(known: tuple[str, ...]) -> None:
    world = started()
    world.kill_together(0, 1, 2)
    register(world, 2, *known)
    assert generation(world) == "third"
    assert world.state()[0] == 0, "it leads"


@pytest.mark.parametrize("intact", [True, False])
@pytest.mark.parametrize(
    "known",
    [
        ("first",),  # a late message of the run before
        ("first", "other second"),  # a copy from before the last start
        ("first", "a", "b", "c"),  # however often that is opened
        ("other first", "other second"),
    ],
)
def test_another_run_that_lacks_the_newest_is_refused_whatever_it_says(
    known: tuple[str, ...], intact: bool
) -> None:
    world = started()
    before = world.state()
    assert stale(world, 2, *known, intact=intact) == "second"
    assert world.state() == before, "the run that lives keeps its leadership and its seat"
    assert world.cluster().brokers[BrokerId(0)].incarnation == "run-0-1"


def test_the_refusal_says_what_is_missing() -> None:
    world = started()
    error = world.refusal(register(world, 2, "first", "other"))
    assert str(error) == (
        "data directory dir-0 of broker 0 lacks the last start or stop that the cluster knows of "
        "(second): its volume was restored from an older copy, or this is an earlier run"
    )


def test_a_run_may_register_again_and_again() -> None:
    world = started()
    for _ in range(2):
        register(world, 1, "second")
        assert world.machine.sessions.get(BrokerId(0)) is not None
    assert world.state() == (0, 1, (0, 1, 2)), "the same run: nothing has changed"


def test_a_broker_that_was_refused_is_accepted_with_what_it_was_told_and_has_lost_its_data() -> (
    None
):
    world = started()
    world.kill_together(0, 1, 2)
    told = stale(world, 2, "first", "other")
    assert world.state()[0] == NO_LEADER
    register(world, 3, told, "third", data_intact=False)
    leader, _, isr = world.state()
    assert (leader, isr) == (NO_LEADER, (1, 2)), "it waits for those who have everything"
    world.register(1, run=2, generations=("second", "third"))
    assert world.state()[0] == 1
    assert generation(world) == "third"


def test_the_volume_that_was_replaced_is_not_believed_either_when_it_comes_back() -> None:
    world = started()
    world.kill(0)
    told = stale(world, 2, "first", "other")
    register(world, 3, told, "third", data_intact=False)
    world.kill(0)
    assert stale(world, 4, "second", "of the first volume") == "third"


def test_another_directory_has_its_own() -> None:
    world = started()
    world.kill(0)
    register(world, 2, "new", directory_id="dir-new", data_intact=False)
    assert generation(world) == "new"


# ---------------------------------------------------------------- stops


def test_a_stop_is_stored_before_the_broker_hears_that_it_may() -> None:
    world = started()
    world.hold_writes = True
    wants_stop(world, "stop")
    assert not may_stop(world)
    world.finish_held(passed=True, answered=True)
    assert may_stop(world)
    assert generation(world) == "stop"
    assert world.state() == (1, 2, (1, 2)), "in the same write"
    world.kill(0)
    assert stale(world, 2, "second", "of a copy") == "stop", "a copy of the run that has stopped"
    register(world, 3, "second", "stop", "third")
    assert generation(world) == "third"


def test_a_stop_of_a_broker_that_leaves_nothing_is_stored_as_well() -> None:
    world = started()
    assert world.ask(m.AlterCluster, hibernating=True) == c.Done()
    before = world.state()
    wants_stop(world, "stop")
    assert may_stop(world)
    assert world.state() == before
    stored = decode_cluster(world.documents.texts[CLUSTER_KEY][0], "c")
    assert stored.brokers[BrokerId(0)].generation == "stop"


@pytest.mark.parametrize("passed", [True, False])
def test_a_stop_whose_write_had_no_answer_is_stored_again(passed: bool) -> None:
    world = started()
    world.hold_writes = True
    wants_stop(world, "stop")
    world.finish_held(passed=passed, answered=False)
    assert generation(world) == "stop"
    assert may_stop(world)


def test_a_late_registration_of_a_run_that_stops_takes_nothing_back() -> None:
    world = started()
    wants_stop(world, "stop")
    register(world, 1, "second")
    assert generation(world) == "stop"


def test_a_stop_may_be_heard_of_by_a_registration_first() -> None:
    world = started()
    register(world, 1, "second", "stop")
    assert generation(world) == "stop"
    writes = world.writes
    world.step(c.StreamClosed(world.streams[0]))
    register(world, 1, "second", "stop")
    wants_stop(world, "stop")
    assert generation(world) == "stop"
    assert world.writes == writes + 1, "for the leader alone"


@pytest.mark.parametrize("said", ["", "x" * 65, "ß", "a\nb"])
def test_a_stop_without_a_name_that_can_be_changes_nothing(said: str) -> None:
    world = started()
    wants_stop(world, said)
    assert may_stop(world)
    assert generation(world) == "second"


def test_a_stop_of_a_broker_that_names_no_generations_writes_nothing_of_it(three: World) -> None:
    wants_stop(three, "stop")
    assert generation(three) == ""


def test_a_broker_that_dies_keeps_its_generation() -> None:
    world = started()
    world.kill(0)
    assert not world.cluster().brokers[BrokerId(0)].alive
    assert generation(world) == "second"


# ---------------------------------------------------------------- other releases


def test_a_broker_of_a_release_that_names_none_is_not_compared(three: World) -> None:
    three.register(0, run=2)
    assert generation(three) == ""
    register(three, 3, "first")
    assert generation(three) == "first"


def test_after_a_run_of_such_a_release_nothing_is_compared() -> None:
    world = started()
    world.kill_together(0, 1, 2)
    world.register(0, run=2)
    assert generation(world) == ""
    register(world, 3, "anew")
    assert generation(world) == "anew"
    assert world.state()[0] == 0, "it is believed, and leads"


def test_after_a_controller_of_such_a_release_nothing_is_compared() -> None:
    documents = Documents()
    started(documents)
    text, version = documents.texts[CLUSTER_KEY]
    documents.texts[CLUSTER_KEY] = (text.replace(',"generation":"second"', ""), version)
    world = World(documents).start()
    register(world, 2, "anything")
    assert generation(world) == "anything"


# ---------------------------------------------------------------- limits


@pytest.mark.parametrize(
    "names", [("",), ("x" * 65,), ("ß",), ("a\nb",), ("x",) * (GENERATIONS_MAX + 1)]
)
def test_generations_that_cannot_be_are_refused(world: World, names: tuple[str, ...]) -> None:
    error = world.refusal(register(world, 1, *names))
    assert isinstance(error, PenstockError)
    assert error.code is ErrorCode.INVALID_REQUEST
    assert error.message == (
        f"broker 0 registers with {len(names)} generations of its data directory; there may be "
        "500, each of 1 to 64 printable characters of ASCII"
    )


def test_as_many_as_there_may_be_are_accepted(world: World) -> None:
    register(world, 1, *(f"{number:064}" for number in range(GENERATIONS_MAX)))
    assert generation(world) == f"{GENERATIONS_MAX - 1:064}"


# ── The cluster's document was put back by hand ───────────────────────────────────────────────


def rewritten(world: World, **changes: Any) -> World:
    """A controller that finds the cluster's document as a person has written it again."""
    documents = world.documents
    found = json.loads(documents.texts[CLUSTER_KEY][0]) | changes
    documents.texts[CLUSTER_KEY] = (json.dumps(found), "by hand")
    after = World(documents).start()
    after._ids = 1_000
    return after


def test_who_lost_its_data_is_believed_though_the_document_names_no_broker() -> None:
    world = started()
    world.kill_together(0, 1, 2)
    world = rewritten(world, brokers=[])
    register(world, 2, "second", "third", data_intact=False)
    assert world.state()[0] == NO_LEADER, "it lacks what was acknowledged"
    assert world.state()[2] == (1, 2)
    assert world.topic().partitions[0].lossy == (0,)
    assert "broker came back without its data" in world.events()
    world.register(1, run=2, generations=("second", "third"))
    assert world.state()[0] == 1


def older_copy(world: World) -> dict[str, Any]:
    """The document of before the last start of every broker, which is lost then."""
    found: dict[str, Any] = json.loads(world.documents.texts[CLUSTER_KEY][0])
    world.kill_together(0, 1, 2)
    for broker_id in range(3):
        world.register(broker_id, run=2, generations=("second", "third"))
    world.alter_isr(0, (0, 1, 2))
    return found


def back(world: World, broker_id: int, before: World) -> int:
    """Running on, it finds a controller again; it knows what the one `before` has written."""
    return world.register(
        broker_id,
        run=2,
        generations=("third",),
        seen_controller_epoch=before.machine.epoch,
        seen_metadata_version=before.versions[-1],
    )


def test_an_older_copy_of_the_document_is_refused_and_the_refusal_says_what_it_needs() -> None:
    world = started()
    old = older_copy(world)
    documents = world.documents
    documents.texts = {CLUSTER_KEY: documents.texts[CLUSTER_KEY]}  # its topics are older, too
    after = rewritten(world, **old)
    error = after.refusal(back(after, 0, world))
    assert isinstance(error, PenstockError)
    assert error.code is ErrorCode.STALE_CONTROLLER_EPOCH
    assert "it needs these numbers, and its brokers no `generation`" in str(error)


@pytest.mark.parametrize("without", [True, False])
def test_with_its_numbers_raised_and_no_generations_it_takes_all_back(*, without: bool) -> None:
    """As docs/operations.md says; with the generations of then, sound brokers are refused."""
    world = started()
    old = older_copy(world)
    brokers = [
        {key: part for key, part in broker.items() if key != "generation" or not without}
        for broker in old["brokers"]
    ]
    raised = {"controller_epoch": world.machine.epoch, "metadata_version": world.versions[-1]}
    after = rewritten(world, **{**old, **raised, "brokers": brokers})
    for broker_id in range(3):
        stream_id = back(after, broker_id, world)
        if not without:
            assert isinstance(after.refusal(stream_id), StaleDataDirectoryError)
    if without:
        assert set(after.streams) == {0, 1, 2}
        partition = after.topic().partitions[0]
        assert partition.state.leader in {0, 1, 2}
        assert not partition.lossy, "all are believed"
        assert generation(after) == "third"


def test_a_new_broker_has_lost_nothing() -> None:
    world = started()
    world.register(7, data_intact=False)
    assert "broker came back without its data" not in world.events()
