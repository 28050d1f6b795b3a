"""Compare-and-swap writes: durable first, conflicts, unknown outcomes, several controllers."""

import random
from dataclasses import replace
from typing import Any

import pytest
from support.controller_world import World

from penstock.core.control import ControlConfig, Phase
from penstock.core.control import contract as c
from penstock.core.control.documents import (
    CLUSTER_KEY,
    decode_cluster,
    decode_topic,
    encode_cluster,
    encode_topic,
    topic_key,
)
from penstock.core.types import BrokerId, ControllerEpoch, LeaderEpoch, TopicId
from penstock.errors import ErrorCode, OverloadedError, PenstockError


def create_request(world: World, name: str = "t") -> c.CreateTopics:
    request_id = world.new_id()
    topic = c.NewTopic(
        name=name, topic_id=TopicId(f"id-{name}-{request_id}"), partitions=1, replication_factor=2
    )
    return c.CreateTopics(request_id, "", (topic,))


@pytest.fixture
def pair(world: World) -> Any:
    """Two brokers, no topics."""
    world.register_all(0, 1)
    return world


# ---------------------------------------------------------------- durable first


def test_nothing_is_said_or_shown_before_it_is_durable(pair: World) -> None:
    pair.hold_writes = True
    version = pair.machine.stored.metadata_version
    request = create_request(pair)
    pair.step(request)
    assert request.request_id not in pair.replies
    assert pair.machine.topic("t") is None
    assert pair.machine.image(version).topics == ()
    pair.finish_held(passed=True, answered=True)
    assert isinstance(pair.replies[request.request_id], c.TopicsChanged)
    assert [topic.name for topic in pair.machine.image(version).topics] == ["t"]


def test_what_happens_during_a_write_goes_into_the_next_one(pair: World) -> None:
    pair.hold_writes = True
    requests = [create_request(pair, f"t{number}") for number in range(50)]
    pair.step(requests[0])
    for request in requests[1:]:
        pair.step(request)
    writes = pair.writes
    pair.finish_held(passed=True, answered=True)
    assert pair.writes == writes + 1, "49 topics in one write"
    assert all(request.request_id in pair.replies for request in requests)


def test_requests_beyond_the_limit_are_turned_away(make_world: type[World]) -> None:
    world = make_world(config=ControlConfig(max_pending_requests=2)).start()
    world.hold_writes = True
    world.register(0)
    requests = [create_request(world, f"t{number}") for number in range(3)]
    for request in requests:
        world.step(request)
    assert isinstance(world.replies[requests[2].request_id], OverloadedError)
    assert requests[0].request_id not in world.replies


# ---------------------------------------------------------------- doubtful outcomes


@pytest.mark.parametrize("passed", [True, False])
def test_a_topic_created_by_an_unanswered_write_is_recognised(pair: World, passed: bool) -> None:
    pair.hold_writes = True
    request = create_request(pair)
    pair.step(request)
    pair.finish_held(passed=passed, answered=False)
    result = pair.replies[request.request_id]
    assert isinstance(result, c.TopicsChanged)
    assert result.outcomes[0].error is None
    assert pair.topic().topic_id == request.topics[0].topic_id


@pytest.mark.parametrize("passed", [True, False])
def test_a_deletion_by_an_unanswered_write_is_recognised(pair: World, passed: bool) -> None:
    pair.create(replication_factor=2)
    pair.hold_writes = True
    request_id = pair.new_id()
    pair.step(c.DeleteTopics(request_id, "", (("t", TopicId("")), ("never", TopicId("")))))
    pair.finish_held(passed=passed, answered=False)
    result = pair.replies[request_id]
    assert isinstance(result, c.TopicsChanged)
    first, second = result.outcomes
    assert first.error is None
    assert second.error is not None
    assert second.error.code is ErrorCode.UNKNOWN_TOPIC
    assert pair.machine.topic("t") is None
    assert len(pair.machine.image(0).deleted_topic_ids) == 1


@pytest.mark.parametrize("passed", [True, False])
def test_more_partitions_by_an_unanswered_write_are_recognised(pair: World, passed: bool) -> None:
    pair.create(replication_factor=2)
    pair.hold_writes = True
    request_id = pair.new_id()
    pair.step(c.CreatePartitions(request_id=request_id, cluster_id="", topic="t", partitions=4))
    pair.finish_held(passed=passed, answered=False)
    assert pair.replies[request_id] == c.Done()
    assert len(pair.topic().partitions) == 4


@pytest.mark.parametrize("passed", [True, False])
def test_an_isr_change_by_an_unanswered_write_is_recognised(three: World, passed: bool) -> None:
    document = three.topic()
    state = document.partitions[0].state
    three.hold_writes = True
    change = c.IsrChange(
        topic_id=document.topic_id,
        partition=0,
        leader_epoch=state.leader_epoch,
        version=state.version,
        isr=(BrokerId(0),),
    )
    request_id = three.new_id()
    epoch, session = three.machine.epoch, three.session(0)
    three.step(
        c.AlterIsr(
            request_id=request_id,
            cluster_id="",
            broker_id=BrokerId(0),
            broker_session=session,
            controller_epoch=epoch,
            changes=(change,),
        )
    )
    three.finish_held(passed=passed, answered=False)
    result = three.replies[request_id]
    assert isinstance(result, c.IsrAltered)
    assert result.outcomes[0].error is None
    assert three.state() == (0, 1, (0,))


@pytest.mark.parametrize("passed", [True, False])
def test_a_death_in_an_unanswered_write_is_not_forgotten(three: World, passed: bool) -> None:
    three.hold_writes = True
    three.kill(0)
    three.finish_held(passed=passed, answered=False)
    assert three.state() == (1, 2, (1, 2))
    assert three.versions[-1] == three.machine.stored.metadata_version


@pytest.mark.parametrize("passed", [True, False])
def test_a_registration_in_an_unanswered_write_is_answered(world: World, passed: bool) -> None:
    world.hold_writes = True
    stream = world.register(0)
    assert stream not in world.messages
    world.finish_held(passed=passed, answered=False)
    assert isinstance(world.messages[stream][0], c.SessionAccepted)


def test_a_conflict_is_decided_again_on_what_is_stored(pair: World) -> None:
    pair.create(replication_factor=2)
    key = topic_key("t")
    pair.hold_writes = True
    pair.step(
        c.AlterConfigs(
            request_id=pair.new_id(), cluster_id="", topic="t", set_configs={"retention.ms": "5"}
        )
    )
    newer = decode_topic(pair.documents.texts[key][0], key)
    newer = replace(
        newer,
        configs={"retention.bytes": "7"},
        metadata_version=newer.metadata_version + 1,
    )
    pair.documents.texts[key] = (encode_topic(newer), "of another writer")
    pair.finish_held(passed=False, answered=True)
    assert pair.topic().configs == {"retention.bytes": "7", "retention.ms": "5"}


@pytest.mark.parametrize("survives", [True, False])
def test_a_lossy_broker_loses_its_seat_even_if_the_write_was_cut_in_half(
    three: World, make_world: type[World], survives: bool
) -> None:
    three.hold_writes = True
    three.register(2, run=2, data_intact=False)
    three.finish_partly(1, survives=survives)
    world = three
    if not survives:
        world = make_world(three.documents).start()
        world.register(0)
        world.register(1)
        world.register(2, run=2, data_intact=False)
    assert world.state() == (0, 1, (0, 1))
    assert world.cluster().brokers[BrokerId(2)].incarnation == "run-2-2"


@pytest.mark.parametrize("survives", [True, False])
def test_a_deletion_cut_in_half_is_finished(
    pair: World, make_world: type[World], survives: bool
) -> None:
    pair.create("doomed", replication_factor=2)
    topic_id = pair.topic("doomed").topic_id
    pair.hold_writes = True
    pair.step(c.DeleteTopics(pair.new_id(), "", (("doomed", TopicId("")),)))
    pair.finish_partly(1, survives=survives)
    world = pair if survives else make_world(pair.documents).start()
    assert world.machine.topic("doomed") is None
    assert topic_key("doomed") not in world.documents.texts
    assert world.machine.image(0).deleted_topic_ids == (topic_id,)


@pytest.mark.parametrize("stages", [0, 1, 2, 3])
@pytest.mark.parametrize("named", [True, False])
def test_a_topic_that_is_deleted_and_created_again_by_an_unanswered_write_lives(
    pair: World, make_world: type[World], stages: int, named: bool
) -> None:
    """Deciding again took the new topic for the old one, and deleted it with its records."""
    pair.create("t", replication_factor=2)
    former = pair.topic("t").topic_id
    pair.hold_writes = True
    pair.step(create_request(pair, "other"))
    deletion = c.DeleteTopics(pair.new_id(), "", (("t", former if named else TopicId("")),))
    creation = create_request(pair, "t")
    pair.step(deletion)
    pair.step(creation)
    first, pair.held = pair.held, None
    assert first is not None
    versions = pair.documents.write(first.writes)
    assert versions is not None
    pair.step(c.WriteDone(first.write_id, versions))
    pair.finish_partly(stages)
    made = creation.topics[0].topic_id
    for request_id, topic_id in ((deletion.request_id, former), (creation.request_id, made)):
        result = pair.replies[request_id]
        assert isinstance(result, c.TopicsChanged)
        assert [(one.topic_id, one.error) for one in result.outcomes] == [(topic_id, None)]
    after = make_world(pair.documents).start()
    assert after.topic("t").topic_id == made
    assert after.machine.image(0).deleted_topic_ids == (former,)


def test_an_id_that_was_deleted_is_not_used_again(pair: World) -> None:
    """As by a request that is sent again after its topic was deleted."""
    request = create_request(pair)
    pair.step(request)
    pair.step(c.DeleteTopics(pair.new_id(), "", (("t", TopicId("")),)))
    again = replace(request, request_id=pair.new_id())
    pair.step(again)
    result = pair.replies[again.request_id]
    assert isinstance(result, c.TopicsChanged)
    (outcome,) = result.outcomes
    assert outcome.error is not None
    assert outcome.error.code is ErrorCode.TOPIC_ID_MISMATCH
    assert pair.machine.topic("t") is None


# ---------------------------------------------------------------- hands in the store


def test_a_topic_document_deleted_by_hand_is_put_back(pair: World) -> None:
    pair.create("kept", replication_factor=2)
    del pair.documents.texts[topic_key("kept")]
    pair.ask(c.AlterConfigs, topic="kept", set_configs={"retention.ms": "5"})
    assert topic_key("kept") in pair.documents.texts
    assert pair.topic("kept").configs == {"retention.ms": "5"}
    assert pair.machine.image(0).deleted_topic_ids == ()


def test_an_older_topic_document_applied_by_hand_never_turns_epochs_back(three: World) -> None:
    key = topic_key("t")
    old = three.documents.texts[key][0]
    three.kill(0)
    assert three.state()[1] == 2
    three.documents.texts[key] = (old, "by hand")
    three.kill(1)
    assert three.state() == (2, 3, (2,))


def test_a_former_topics_document_applied_by_hand_does_not_end_the_one_of_its_name(
    pair: World,
) -> None:
    key = topic_key("kept")
    pair.create("kept", replication_factor=2)
    former = pair.documents.texts[key][0]
    pair.ask(c.DeleteTopics, topics=(("kept", pair.topic("kept").topic_id),))
    pair.create("kept", replication_factor=2)
    topic_id = pair.topic("kept").topic_id
    assert topic_id != decode_topic(former, "").topic_id
    pair.documents.texts[key] = (former, "by hand")
    pair.step(seen(pair))
    assert pair.topic("kept").topic_id == topic_id
    assert decode_topic(pair.documents.texts[key][0], "").topic_id == topic_id


def seen(world: World) -> c.StoreSeen:
    """What is in the store, as its controller would hear now."""
    versions = {key: version for key, (_, version) in world.documents.texts.items()}
    return c.StoreSeen(versions=versions, metadata_version=world.machine.stored.metadata_version)


@pytest.mark.parametrize("how", ["deleted", "an older one applied"])
def test_what_was_changed_by_hand_is_put_back_once_it_is_seen(three: World, how: str) -> None:
    """Though nothing else is to be written. A controller that takes over would believe it."""
    key = topic_key("t")
    old = three.documents.texts[key][0]
    three.kill(0)
    right = three.documents.texts[key][0]
    if how == "deleted":
        del three.documents.texts[key]
    else:
        three.documents.texts[key] = (old, "by hand")
    three.step(seen(three))
    now = decode_topic(three.documents.texts[key][0], key)
    assert replace(now, metadata_version=0) == replace(decode_topic(right, key), metadata_version=0)
    assert "somebody else has changed the metadata store, reading again" in [
        decision.event for decision in three.decisions
    ]


def test_what_is_seen_as_it_should_be_costs_nothing(three: World) -> None:
    writes, loads = three.writes, three.loads
    three.step(seen(three))
    assert (three.writes, three.loads) == (writes, loads)


def test_a_document_that_somebody_has_only_labelled_is_read_once(three: World) -> None:
    writes, loads = three.writes, three.loads
    text, _ = three.documents.texts[topic_key("t")]
    three.documents.texts[topic_key("t")] = (text, "labelled")
    for _ in range(3):
        three.step(seen(three))
    assert (three.writes, three.loads) == (writes, loads + 1)


def test_what_is_seen_beside_a_write_of_its_own_proves_nothing(pair: World) -> None:
    before = seen(pair)
    pair.create("t", replication_factor=2)
    loads = pair.loads
    pair.step(before)
    pair.hold_writes = True
    request = create_request(pair, "u")
    pair.step(request)
    pair.step(replace(seen(pair), versions={}))
    assert pair.loads == loads
    pair.finish_held(passed=True, answered=True)
    assert isinstance(pair.replies[request.request_id], c.TopicsChanged)


def test_while_brokers_stand_in_for_the_store_what_is_in_it_is_older(three: World) -> None:
    three.step(c.StoreState(journaling=True))
    loads = three.loads
    three.step(replace(seen(three), versions={}))
    assert three.loads == loads


def test_a_restored_cluster_document_never_turns_the_epoch_back(pair: World) -> None:
    text, _ = pair.documents.texts[CLUSTER_KEY]
    older = replace(
        decode_cluster(text, "x"), controller_epoch=ControllerEpoch(0), metadata_version=1
    )
    pair.documents.texts[CLUSTER_KEY] = (encode_cluster(older), "by hand")
    pair.register(2)
    assert pair.cluster().controller_epoch == 1
    assert set(pair.cluster().brokers) == {0, 1, 2}


# ---------------------------------------------------------------- take-over


def test_a_new_controller_raises_the_epoch_and_keeps_everything(
    three: World, make_world: type[World]
) -> None:
    successor = make_world(three.documents)
    successor.start()
    assert successor.machine.epoch == three.machine.epoch + 1
    assert successor.state() == three.state()
    assert successor.machine.stored.metadata_version > three.machine.stored.metadata_version


def test_after_a_take_over_brokers_have_the_session_timeout_to_come_back(
    three: World, make_world: type[World]
) -> None:
    successor = make_world(three.documents).start()
    successor.pass_time(1_000)
    successor.register(1)
    assert successor.state() == (0, 1, (0, 1, 2)), "nobody is declared dead by the take-over"
    successor.pass_time(1_000)
    assert successor.state() == (1, 2, (1,))


def test_a_deposed_controller_stops_at_its_next_write(
    three: World, make_world: type[World]
) -> None:
    make_world(three.documents).start()
    three.kill(0)
    assert three.deposed
    assert three.machine.phase is Phase.DEPOSED
    request = create_request(three, "late")
    three.step(request)
    refused = three.replies[request.request_id]
    assert isinstance(refused, PenstockError)
    assert refused.code is ErrorCode.NOT_CONTROLLER


def test_whoever_waits_when_a_controller_is_deposed_is_told(
    three: World, make_world: type[World]
) -> None:
    three.hold_writes = True
    first, second = create_request(three, "first"), create_request(three, "second")
    three.step(first)
    three.step(second)
    make_world(three.documents).start()
    three.finish_held(passed=False, answered=True)
    for request in (first, second):
        refused = three.replies[request.request_id]
        assert isinstance(refused, PenstockError)
        assert refused.code is ErrorCode.NOT_CONTROLLER


def test_reports_that_were_not_asked_for_are_ignored(three: World) -> None:
    version = three.machine.stored.metadata_version
    three.step(c.WriteDone(99, {}))
    three.step(c.WriteConflict(99))
    three.step(c.Loaded(None, (), "another"))
    assert three.machine.stored.metadata_version == version
    assert three.state() == (0, 1, (0, 1, 2))


def test_a_take_over_whose_write_is_unanswered_raises_the_epoch_again(
    make_world: type[World],
) -> None:
    world = make_world()
    world.hold_writes = True
    world.step(world.documents.loaded())
    assert world.machine.epoch == 0
    world.finish_held(passed=True, answered=False)
    assert world.machine.epoch == 2


def test_deleted_topics_are_told_to_brokers_that_were_away(
    pair: World, make_world: type[World]
) -> None:
    pair.create("gone", replication_factor=2)
    topic_id = pair.topic("gone").topic_id
    pair.ask(c.DeleteTopics, topics=(("gone", TopicId("")),))
    successor = make_world(pair.documents).start()
    assert successor.machine.image(0).deleted_topic_ids == (topic_id,)


# ---------------------------------------------------------------- everything at once


def act(world: World, rng: random.Random) -> None:
    """One random thing; documents check I1 and I21 at every write."""
    broker_id = rng.randrange(4)
    choice = rng.randrange(10)
    if choice < 3:
        intact = rng.random() < 0.7
        run = rng.randrange(1000)
        world.register(broker_id, run=run, data_intact=intact)
    elif choice < 5 and broker_id in world.streams:
        world.step(c.StreamClosed(world.streams.pop(broker_id)))
    elif choice == 5:
        world.pass_time(rng.choice([50, 200, 2_000]))
    elif choice == 6:
        partitions = rng.randrange(1, 4)
        name = f"t{rng.randrange(3)}"
        topic = c.NewTopic(
            name=name,
            topic_id=TopicId(f"id-{world.new_id()}"),
            partitions=partitions,
            replication_factor=2,
        )
        world.step(c.CreateTopics(world.new_id(), "", (topic,)))
    elif choice == 7:
        world.step(c.ElectLeaders(world.new_id(), "", (), rng.choice([None, BrokerId(broker_id)])))
    elif choice == 8 and broker_id in world.streams:
        world.step(
            c.HeartbeatReceived(
                stream_id=world.streams[broker_id],
                metadata_version=0,
                wants_stop=rng.random() < 0.3,
            )
        )
    else:
        propose_isr(world, rng)


def propose_isr(world: World, rng: random.Random) -> None:
    topics = list(world.machine.stored.topics.values())
    if not topics:
        return
    topic = rng.choice(topics)
    index = rng.randrange(len(topic.partitions))
    state = topic.partitions[index].state
    session = world.machine.sessions.get(state.leader)
    if session is None:
        return
    others = [member for member in state.replicas if rng.random() < 0.6]
    isr = tuple(dict.fromkeys([state.leader, *others]))
    stale = rng.random() < 0.2
    change = c.IsrChange(
        topic_id=topic.topic_id,
        partition=index,
        leader_epoch=LeaderEpoch(state.leader_epoch),
        version=state.version - int(stale),
        isr=isr,
    )
    epoch = world.machine.epoch
    world.step(
        c.AlterIsr(
            request_id=world.new_id(),
            cluster_id="",
            broker_id=state.leader,
            broker_session=session.number,
            controller_epoch=epoch,
            changes=(change,),
        )
    )


@pytest.mark.parametrize("round_number", range(25))
def test_random_lives_with_doubtful_writes_keep_the_invariants(
    make_world: type[World], rng: random.Random, round_number: int
) -> None:
    world = make_world().start()
    for _ in range(150):
        if world.held is None and rng.random() < 0.3:
            world.hold_writes = True
        act(world, rng)
        if world.held is not None and rng.random() < 0.5:
            if rng.random() < 0.2:
                world.finish_partly(rng.randrange(len(world.held.writes)))
                continue
            late = rng.random() < 0.3
            world.finish_held(passed=rng.random() < 0.6, answered=rng.random() < 0.5, late=late)
        if world.deposed or rng.random() < 0.02:
            world = make_world(world.documents)
            world.start()
    if world.held is not None:
        world.finish_held(passed=True, answered=True)
    world.hold_writes = False
    for broker_id in range(4):
        world.register(broker_id, run=5_000)
    # A write that landed late shows when its document is written next.
    for name in ("t0", "t1", "t2"):
        world.ask(
            c.AlterConfigs, topic=name, set_configs={"retention.ms": str(rng.randrange(1000))}
        )
    world.pass_time(3_000)
    check_settled(world)


def check_settled(world: World) -> None:
    """All brokers are back and intact: every partition that has a holder has a leader."""
    assert not isinstance(world.machine.summary(), PenstockError)
    for topic in world.machine.stored.topics.values():
        for partition in topic.partitions:
            state = partition.state
            if state.isr or partition.elr or partition.lossy:
                assert state.leader in state.isr, partition
    stored = world.documents.loaded()
    assert stored.cluster is not None
    assert stored.cluster[0] == world.cluster()
    assert {topic.name: topic for topic, _ in stored.topics} == world.machine.stored.topics
