"""Producer ids and leader moves, decided on a draft, and checks that all requests share.

Every function gets the draft and the sessions, changes the draft, and returns the result that is
sent once the draft is durable. After an unknown write the same request is decided again on what was
found in the store, so each must recognize its own effect.
"""

from dataclasses import replace

from penstock.core.control.contract import (
    AllocateProducerIds,
    ElectLeaders,
    LeadersMoved,
    ProducerIds,
    Severity,
)
from penstock.core.control.documents import TopicDocument
from penstock.core.control.draft import Draft
from penstock.core.control.election import Liveness, move_leader
from penstock.core.control.partition import PartitionDocument
from penstock.core.control.sessions import Sessions
from penstock.core.types import (
    NO_LEADER,
    BrokerId,
    ControllerEpoch,
    PartitionState,
    TopicPartition,
)
from penstock.core.words import listed
from penstock.errors import ClusterError, ErrorCode


def check_cluster_id(draft: Draft, cluster_id: str) -> None:
    """Empty = unchecked. Raises CLUSTER_ID_MISMATCH."""
    if cluster_id and cluster_id != draft.cluster.cluster_id:
        raise ClusterError(
            f"the request is for cluster {cluster_id!r}, but this is cluster "
            f"{draft.cluster.cluster_id!r}; check the address",
            ErrorCode.CLUSTER_ID_MISMATCH,
        )


def check_session(sessions: Sessions, broker_id: BrokerId, number: int) -> None:
    """Raises STALE_BROKER_SESSION unless `number` names the broker's current session."""
    session = sessions.get(broker_id)
    if session is None or session.number != number:
        current = "none" if session is None else str(session.number)
        raise ClusterError(
            f"broker {broker_id} names session {number}, current is {current}; register again",
            ErrorCode.STALE_BROKER_SESSION,
        )


def partition_of(topic: TopicDocument, partition: int) -> PartitionDocument:
    """One of the topic's partitions. Raises UNKNOWN_PARTITION if it has none of this number."""
    if not 0 <= partition < len(topic.partitions):
        raise ClusterError(
            f"topic {topic.name!r} has partitions 0 to {len(topic.partitions) - 1}, not "
            f"{partition}",
            ErrorCode.UNKNOWN_PARTITION,
        )
    return topic.partitions[partition]


def check_controller_epoch(epoch: ControllerEpoch, mine: ControllerEpoch) -> None:
    """Raises STALE_CONTROLLER_EPOCH unless both sides mean the same controller."""
    if epoch != mine:
        raise ClusterError(
            f"the request names controller epoch {epoch}, but this controller has {mine}; find "
            "the active controller and register there",
            ErrorCode.STALE_CONTROLLER_EPOCH,
        )


# ---------------------------------------------------------------- producer ids


def decide_producer_ids(
    draft: Draft, request: AllocateProducerIds, sessions: Sessions
) -> ProducerIds:
    """The next block. A retry after an unknown write gets a different one: ids are plentiful."""
    check_cluster_id(draft, request.cluster_id)
    check_session(sessions, request.broker_id, request.broker_session)
    first, count = draft.cluster.next_producer_id, draft.config.producer_ids_per_block
    draft.put_cluster(replace(draft.cluster, next_producer_id=first + count))
    return ProducerIds(first, count)


# ---------------------------------------------------------------- leaders


def decide_elect_leaders(draft: Draft, request: ElectLeaders, liveness: Liveness) -> LeadersMoved:
    """Moves leadership within ISRs. With an error nothing has moved."""
    check_cluster_id(draft, request.cluster_id)
    if draft.cluster.hibernating:
        raise ClusterError(
            "the cluster hibernates, and no leadership moves until it wakes",
            ErrorCode.HIBERNATING,
        )
    wanted = _wanted_partitions(draft, request.partitions)
    moves: list[tuple[TopicDocument, int, BrokerId]] = []
    for topic, index in wanted:
        state = topic.partitions[index].state
        if request.away_from is not None:
            target = _other_leader(state, request.away_from, liveness)
        else:
            target = _preferred_leader(state, liveness)
            if target == NO_LEADER and request.partitions:
                raise _cannot_lead(f"{topic.name}/{index}", state, liveness)
        if target not in {NO_LEADER, state.leader}:
            moves.append((topic, index, target))
    for topic, index, target in moves:
        _move(draft, topic.name, index, target)
    if moves:
        draft.decide(
            Severity.INFO, "leaders moved on request", count=len(moves), away_from=request.away_from
        )
    return LeadersMoved(len(moves))


def return_leaders(draft: Draft, liveness: Liveness, may_lead: frozenset[BrokerId]) -> int:
    """Gives leadership back to preferred replicas among `may_lead`; returns how many moved.

    A broker that is cordoned for leadership gets none back, and gives what it has to others.
    """
    moved = 0
    for topic in draft.topics():
        for index, document in enumerate(topic.partitions):
            if moved >= draft.config.preferred_leader_moves:
                return moved
            state = document.state
            target = _uncordoned_leader(state, liveness)
            if state.leader not in {NO_LEADER, target} and target in may_lead:
                _move(draft, topic.name, index, target)
                moved += 1
    return moved


def _wanted_partitions(
    draft: Draft, partitions: tuple[TopicPartition, ...]
) -> list[tuple[TopicDocument, int]]:
    if not partitions:
        return [
            (topic, index) for topic in draft.topics() for index in range(len(topic.partitions))
        ]
    wanted = []
    for name in dict.fromkeys(partitions):
        topic = draft.topic(name.topic)
        if topic is None:
            raise ClusterError(f"there is no topic {name.topic!r}", ErrorCode.UNKNOWN_TOPIC)
        if not 0 <= name.partition < len(topic.partitions):
            raise ClusterError(
                f"topic {name.topic!r} has partitions 0 to {len(topic.partitions) - 1}, "
                f"not {name.partition}",
                ErrorCode.UNKNOWN_PARTITION,
            )
        wanted.append((topic, name.partition))
    return wanted


def _preferred_leader(state: PartitionState, liveness: Liveness) -> BrokerId:
    preferred = state.replicas[0]
    able = preferred in state.isr and preferred in liveness.staying
    return preferred if able else NO_LEADER


def _uncordoned_leader(state: PartitionState, liveness: Liveness) -> BrokerId:
    if liveness.cordoned.isdisjoint((state.replicas[0], state.leader)):
        return _preferred_leader(state, liveness)
    for broker_id in state.replicas:
        able = broker_id in state.isr and broker_id in liveness.staying
        if able and broker_id not in liveness.cordoned:
            return broker_id
    return NO_LEADER


def _other_leader(state: PartitionState, away_from: BrokerId, liveness: Liveness) -> BrokerId:
    if state.leader != away_from:
        return NO_LEADER
    able = [
        broker_id
        for broker_id in state.replicas
        if broker_id != away_from and broker_id in state.isr and broker_id in liveness.staying
    ]
    able.sort(key=lambda broker_id: broker_id in liveness.cordoned)
    return able[0] if able else NO_LEADER


def _cannot_lead(where: str, state: PartitionState, liveness: Liveness) -> ClusterError:
    preferred = state.replicas[0]
    why = "is not in the ISR"
    if preferred not in liveness.live:
        why = "has no session"
    elif preferred in liveness.leaving:
        why = "is shutting down"
    return ClusterError(
        f"broker {preferred}, the preferred leader of {where}, {why} (ISR {listed(state.isr)}); "
        "nothing was moved; ask again when it has caught up",
        ErrorCode.INELIGIBLE_REPLICA,
    )


def _move(draft: Draft, topic: str, partition: int, leader: BrokerId) -> None:
    found = draft.topic(topic)
    assert found is not None
    draft.put_partition(topic, partition, move_leader(found.partitions[partition], leader))
