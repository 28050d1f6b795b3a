"""A deposed controller's last write lands after its successor has read: who hears of it, and when.

All were found by the simulator: the data plane went on, but the ISR could never grow again; or a
partition stayed without a leader.
"""

from dataclasses import replace
from typing import Any

from support.controller_world import World

from penstock.core.control import contract as c
from penstock.core.control.documents import encode_topic, topic_key
from penstock.core.types import NO_LEADER


def take_over(world: World) -> Any:
    """A second controller is active; the first does not know and changes the ISR once more."""
    successor = type(world)(world.documents).start()
    assert world.alter_isr(0, (0, 1)).error is None
    assert successor.state()[2] == (0, 1, 2)
    return successor


def test_a_leader_that_knows_a_newer_version_makes_the_controller_read_again(three: World) -> None:
    successor = take_over(three)
    successor.register_all(0, 1, 2)
    outcome = successor.alter_isr(0, (0, 1, 2), version=2)
    assert outcome.error is None
    assert outcome.state.isr == (0, 1, 2)
    assert outcome.state.version == 3


def test_partitions_that_a_deposed_controller_left_without_a_leader_get_one(three: World) -> None:
    """Its brokers had all gone to the successor: it took them for dead, and is dead itself."""
    successor = take_over(three)
    successor.register_all(0, 1, 2)
    three.hold_writes = True
    three.kill(0, 1, 2)
    assert three.held is not None
    topics, _cluster = three.held.writes
    assert three.documents.write((topics,)) is not None
    left = three.documents.loaded().topics[0][0].partitions[0].state
    assert left.leader == NO_LEADER
    successor.alter_isr(0, (0, 1, 2), version=2)
    assert "a broker has seen newer metadata, reading again" in successor.events()
    leader, epoch, _ = successor.state()
    assert leader in (0, 1)
    assert epoch == left.leader_epoch + 1


def test_a_broker_that_has_seen_newer_metadata_is_let_in_after_reading_again(three: World) -> None:
    successor = take_over(three)
    assert three.alter_isr(0, (0,)).error is None
    seen = three.machine.stored.metadata_version
    assert seen > successor.machine.stored.metadata_version
    stream = successor.register(0, seen_metadata_version=seen)
    found = [type(message) for message in successor.messages[stream]]
    assert successor.state()[2] == (0,)
    assert c.SessionAccepted in found


def test_a_version_seen_of_the_former_controller_is_not_the_take_overs_of_the_same_number(
    three: World,
) -> None:
    """Both wrote version n + 1: the take-over this one, the last topic write the other."""
    before = three.machine.epoch
    successor = take_over(three)
    seen = three.machine.stored.metadata_version
    assert seen == successor.machine.stored.metadata_version
    successor.register(0, seen_controller_epoch=before, seen_metadata_version=seen)
    assert successor.events().count("a broker has seen newer metadata, reading again") == 1
    assert successor.state()[2] == (0, 1)


def test_a_broker_that_comes_from_the_former_controller_with_nothing_newer_needs_no_reading(
    three: World,
) -> None:
    seen, before = three.machine.stored.metadata_version, three.machine.epoch
    successor = type(three)(three.documents).start()
    successor.register(0, seen_controller_epoch=before, seen_metadata_version=seen)
    assert "a broker has seen newer metadata, reading again" not in successor.events()


def test_a_broker_that_comes_from_a_later_controller_makes_this_one_read_again(
    three: World,
) -> None:
    three.register(1, run=2, seen_controller_epoch=three.machine.epoch + 1, seen_metadata_version=0)
    assert three.events().count("a broker has seen newer metadata, reading again") == 1


def test_a_take_over_gives_partitions_leaders_that_were_left_without_one(three: World) -> None:
    """Whoever left them so may be gone, and no broker has anything to say about them."""
    ((document, _version),) = three.documents.loaded().topics
    partition = document.partitions[0]
    state = partition.state
    left = replace(state, leader=NO_LEADER, version=state.version + 1)
    stored = replace(document, partitions=(replace(partition, state=left),))
    three.documents.texts[topic_key(document.name)] = (encode_topic(stored), "left so")
    successor = type(three)(three.documents).start()
    assert successor.state()[0] == NO_LEADER, "who is alive may not have opened its logs yet"
    successor.register(0)
    leader, epoch, _isr = successor.state()
    assert leader == state.leader
    assert epoch == state.leader_epoch + 1


def test_a_broker_that_has_seen_what_the_store_never_held_is_refused_after_one_look(
    three: World,
) -> None:
    stream = three.register(1, run=2, seen_metadata_version=1_000)
    mine = f"{three.machine.epoch}, {three.machine.stored.metadata_version}"
    told = f"metadata version 1000; this controller is at {mine}: it was deposed"
    assert told in str(three.refusal(stream))
    assert three.events().count("a broker has seen newer metadata, reading again") == 1


def test_proposing_the_present_isr_ends_the_doubt_about_earlier_proposals(three: World) -> None:
    version = three.topic().partitions[0].state.version
    state = three.alter_isr(0, (0, 1, 2)).state
    assert state is not None
    assert state.version == version + 1
    late = three.alter_isr(0, (0, 1), version=version)
    assert late.error is not None
    assert three.state()[2] == (0, 1, 2)


def test_the_answer_to_an_isr_change_tells_which_metadata_it_is_part_of(three: World) -> None:
    """The leader may be the only one that knows, and tells the next controller."""
    before = three.machine.stored.metadata_version
    assert three.alter_isr(0, (0, 1)).error is None
    (answered,) = (one for one in three.replies.values() if isinstance(one, c.IsrAltered))
    assert answered.metadata_version == three.machine.stored.metadata_version > before


def test_a_take_over_is_settled_once_every_broker_has_come_or_its_death_is_stored(
    three: World,
) -> None:
    successor = type(three)(three.documents).start()
    assert not successor.machine.settled
    successor.register_all(0, 1)
    assert not successor.machine.settled
    successor.hold_writes = True
    successor.pass_time(successor.config.session_timeout_ms + 1)
    assert successor.held is not None
    assert not successor.machine.settled
    successor.finish_held(passed=True, answered=True)
    assert successor.machine.settled
    assert successor.state()[2] == (0, 1)


def test_documents_that_come_twice_are_taken_over_once(three: World) -> None:
    """The store was asked again before its first answer came."""
    successor = World(three.documents)
    successor.hold_writes = True
    assert successor.step(three.documents.loaded()).writes
    assert not successor.step(three.documents.loaded()).writes
