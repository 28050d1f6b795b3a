"""The client's picture of the cluster takes news in and never goes back."""

from dataclasses import replace

import pytest

from penstock.client.cluster.view import Leader, MetadataSnapshot
from penstock.client.model import BrokerDescription, PartitionDescription, TopicDescription
from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, CurrentLeader, ErrorCode

HERE = TopicPartition("t", 0)


def view(
    *, leader: int = 0, epoch: int = 1, version: int = 1, topic_id: str = "id", cluster: str = "c"
) -> MetadataSnapshot:
    partition = PartitionDescription(0, leader, epoch, (0, 1), (0, 1), version)
    return MetadataSnapshot(
        cluster_id=cluster,
        controller_epoch=1,
        metadata_version=version,
        brokers={n: BrokerDescription(n, "h", 9000 + n, "", alive=n != 1) for n in (0, 1)},
        topics={"t": TopicDescription("t", topic_id, (partition,), {})},
    )


def test_newer_answers_replace_older_ones() -> None:
    merged = view().merge(view(leader=1, epoch=2, version=2), frozenset({"t"}))
    assert merged.leader(HERE) == Leader(1, 2, "h:9001")


def test_a_broker_that_is_behind_changes_nothing_known() -> None:
    new = view(leader=1, epoch=2, version=2)
    assert new.merge(view(), frozenset({"t"})).leader(HERE) == Leader(1, 2, "h:9001")
    assert new.merge(view(topic_id="old"), frozenset({"t"})).topics["t"].topic_id == "id"


def test_what_a_broker_that_is_behind_knows_alone_is_added_and_nothing_is_lost() -> None:
    new = view(leader=1, epoch=2, version=2)
    behind = view()
    here = new.brokers[0]
    other = BrokerDescription(7, "other", 1, "", alive=True)
    old = replace(here, host="old")
    merged = new.merge(replace(behind, brokers={0: old, 7: other}), frozenset({"t"}))
    assert merged.brokers == {**new.brokers, 7: other}
    assert merged.metadata_version == 2


def test_a_leader_learnt_from_an_error_is_not_undone_by_an_answer_of_the_older_epoch() -> None:
    learnt = view().with_leader(HERE, CurrentLeader(1, 5, "h", 9001))
    assert learnt.leader(HERE) == Leader(1, 5, "h:9001")
    assert learnt.merge(view(version=2), frozenset({"t"})).leader(HERE) == Leader(1, 5, "h:9001")
    assert learnt.with_leader(HERE, CurrentLeader(0, 4, "h", 9000)) is learnt


def test_a_leader_learnt_from_an_error_may_be_a_broker_not_seen_before() -> None:
    learnt = view().with_leader(HERE, CurrentLeader(7, 5, "new", 1))
    assert learnt.leader(HERE) == Leader(7, 5, "new:1")


def test_a_topic_created_again_replaces_the_old_one_whatever_its_epochs() -> None:
    merged = view(epoch=9).merge(view(topic_id="other", version=2), frozenset({"t"}))
    assert merged.topics["t"].topic_id == "other"
    assert merged.topics["t"].partitions[0].leader_epoch == 1


def test_topics_asked_for_and_missing_are_forgotten_and_others_kept() -> None:
    empty = MetadataSnapshot("c", 1, 2)
    assert "t" not in view().merge(empty, frozenset({"t"})).topics
    assert "t" not in view().merge(empty, None).topics
    assert "t" in view().merge(empty, frozenset({"u"})).topics


def test_another_cluster_is_refused() -> None:
    with pytest.raises(ClusterError, match="'other'") as refused:
        view().merge(view(cluster="other"), frozenset())
    assert refused.value.code is ErrorCode.CLUSTER_ID_MISMATCH


def test_a_partition_without_leader_or_unknown_has_none() -> None:
    assert view(leader=-1).leader(HERE) is None
    assert view().leader(TopicPartition("t", 1)) is None
    assert view().leader(TopicPartition("u", 0)) is None


def test_brokers_that_are_alive_are_asked_first() -> None:
    assert view().addresses() == ["h:9000", "h:9001"]
