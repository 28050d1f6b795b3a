"""Moves of partition 0 of topic `t` in a controller's world, and what each write must keep."""

from typing import Any

from support.controller_world import Documents, World

from penstock.core.control import contract as c
from penstock.core.control import move_contract as m
from penstock.core.control.documents import CLUSTER_KEY, decode_topic, encode_topic
from penstock.core.control.partition import PartitionDocument
from penstock.core.topic import TopicConfig
from penstock.core.types import NO_LEADER, BrokerId, ReplicaKey
from penstock.errors import ErrorCode, PenstockError


def ids(*brokers: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(one) for one in brokers)


def moving_world(brokers: int = 5, replicas: tuple[int, ...] = (0, 1, 2), **configs: str) -> World:
    """Topic `t` has one partition on `replicas`, all in sync; documents are checked on writes."""
    world = World(CheckedDocuments()).start()
    world.register_all(*range(brokers))
    outcome = world.create(
        assignment=(ids(*replicas),), configs={name.replace("_", "."): v for name, v in
        configs.items()}
    )  # fmt: skip
    assert outcome.error is None
    return world


def document(world: World, partition: int = 0, topic: str = "t") -> PartitionDocument:
    return world.topic(topic).partitions[partition]


def change(world: World, *target: int, **fields: Any) -> m.ReplicaChange:
    """`expected` is what is stored."""
    given = {"topic": "t", "partition": 0, **fields}
    expected = document(world, given["partition"], given["topic"]).state.replicas
    return m.ReplicaChange(**{"expected": expected, "target": ids(*target), **given})


def alter(world: World, *changes: m.ReplicaChange, **fields: Any) -> m.ReplicasAltered:
    outcome = world.ask(m.AlterReplicas, changes=changes, **fields)
    assert isinstance(outcome, m.ReplicasAltered), outcome
    return outcome


def move(world: World, *target: int, **fields: Any) -> m.ReplicaOutcome:
    """Asks for these replicas of partition 0 of `t`."""
    return alter(world, change(world, *target), **fields).outcomes[0]


def cancel(world: World) -> m.ReplicaOutcome:
    wanted = m.ReplicaChange(topic="t", partition=0, cancel=True)
    return alter(world, wanted).outcomes[0]


def copying(world: World, *target: int, **fields: Any) -> None:
    """Asks for these replicas, and lets the copying begin."""
    outcome = move(world, *target, **fields)
    assert outcome.error is None, outcome.error
    assert outcome.state is m.MoveState.QUEUED
    world.pass_time(1_100)
    assert document(world).state.adding


def caught_up(world: World, *isr: int) -> c.IsrOutcome:
    """The leader proposes the ISR (by default the stored one) with all that copy."""
    state = document(world).state
    return world.alter_isr(state.leader, (*(isr or state.isr), *state.adding))


def report(world: World, broker_id: int, **fields: Any) -> tuple[ReplicaKey, ...]:
    """What a broker says of its replicas; those of them that keep a seat."""
    outcome = world.ask(
        m.ReportReplicas,
        broker_id=BrokerId(broker_id),
        broker_session=world.session(broker_id),
        **fields,
    )
    assert isinstance(outcome, m.ReplicasReported), outcome
    assert outcome.metadata_version == world.machine.stored.metadata_version
    return outcome.seated


def dropped(world: World, broker_id: int) -> None:
    """The broker reports that its data is deleted, as the stored state asks for."""
    found = world.topic()
    one = m.DroppedReplica(found.topic_id, 0, found.partitions[0].state.version)
    report(world, broker_id, dropped=(one,))


def damaged(world: World, broker_id: int) -> tuple[ReplicaKey, ...]:
    return report(world, broker_id, damaged=(ReplicaKey(world.topic().topic_id, 0),))


def sound(world: World, broker_id: int) -> None:
    report(world, broker_id, sound=(ReplicaKey(world.topic().topic_id, 0),))


def missing(world: World, broker_id: int) -> tuple[ReplicaKey, ...]:
    return report(world, broker_id, missing=(ReplicaKey(world.topic().topic_id, 0),))


def refused(error: object, code: ErrorCode) -> str:
    assert isinstance(error, PenstockError), error
    assert error.code is code, error
    return error.message


class CheckedDocuments(Documents):
    """Every write keeps the rules of a partition, and I29."""

    def _check_history(self, key: str, text: str) -> None:
        super()._check_history(key, text)
        if key == CLUSTER_KEY:
            return
        after = decode_topic(text, key)
        assert encode_topic(after) == text
        for index, partition in enumerate(after.partitions):
            check_partition(partition)
            if key in self.texts:
                before = decode_topic(self.texts[key][0], key)
                if before.topic_id == after.topic_id and index < len(before.partitions):
                    config = TopicConfig.parse(after.configs)
                    least = config.effective_min_insync_replicas(len(partition.state.replicas))
                    check_step(before.partitions[index], partition, least)


def check_partition(partition: PartitionDocument) -> None:
    state = partition.state
    named = (*state.replicas, *state.adding, *state.dropping)
    assert len(named) == len(set(named)), partition
    assert set(state.adding) <= set(partition.target), partition
    for part in (state.isr, partition.elr, partition.lossy, state.damaged):
        assert set(part) <= set(state.replicas), partition
    assert state.leader == NO_LEADER or state.leader in state.isr, partition
    assert (partition.why is None) == (not partition.target), partition
    assert set(partition.target) != set(state.replicas), partition


def check_step(before: PartitionDocument, after: PartitionDocument, min_isr: int) -> None:
    old, new = before.state, after.state
    if old != new:
        assert new.version > old.version, (before, after)
    if set(old.replicas) == set(new.replicas):
        return
    # The switch: to the stored target, at once, with no fewer copies in sync (I29).
    smaller = set(new.replicas) < set(old.replicas)
    assert new.replicas == before.target or smaller, (before, after)
    assert set(new.isr) <= {*old.isr, *old.replicas, *old.adding}, (before, after)
    assert set(new.isr) >= {*new.replicas} - {*old.replicas}, (before, after)
    assert len(new.isr) >= min(len(old.isr), len(new.replicas)), (before, after)
    assert len(new.isr) >= min_isr, (before, after)
    assert set(new.dropping) >= {*old.replicas} - {*new.replicas}, (before, after)
    assert not new.adding, (before, after)
    assert new.leader != NO_LEADER, (before, after)
    assert (new.leader == old.leader) == (new.leader_epoch == old.leader_epoch), (before, after)
