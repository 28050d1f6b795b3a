"""What a broker does not believe: epochs out of reach, documents that no controller writes."""

from dataclasses import replace

import pytest

from penstock.core.control.documents import (
    ClusterDocument,
    TopicDocument,
    encode_cluster,
    encode_topic,
)
from penstock.core.control.journal.checks import EPOCH_JUMP_MAX, check_documents, check_epoch
from penstock.core.control.journal.contract import NO_JOURNAL, Journal
from penstock.core.types import ControllerEpoch, TopicId
from penstock.errors import ClusterError, ErrorCode

EPOCH = ControllerEpoch(5)
TOPIC = TopicDocument(
    name="t",
    topic_id=TopicId("id"),
    controller_epoch=EPOCH,
    metadata_version=7,
    configs={},
    partitions=(),
)
CLUSTER = ClusterDocument(cluster_id="c", controller_epoch=EPOCH, metadata_version=7)


def journal(**documents: str) -> Journal:
    return Journal(EPOCH, 1, {key.replace("_", "/"): text for key, text in documents.items()})


def test_an_epoch_may_be_far_ahead_but_not_out_of_reach() -> None:
    check_epoch(ControllerEpoch(3 + EPOCH_JUMP_MAX), known=3)
    check_epoch(ControllerEpoch(1), known=3)
    with pytest.raises(ClusterError, match="more than 1,000,000 ahead of 3") as caught:
        check_epoch(ControllerEpoch(4 + EPOCH_JUMP_MAX), known=3)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_what_a_controller_writes_is_kept() -> None:
    found = journal(cluster=encode_cluster(CLUSTER), topic_t=encode_topic(TOPIC))
    check_documents(found, NO_JOURNAL, "c")
    check_documents(found, NO_JOURNAL, "")
    check_documents(journal(later='{"metadata_version": 3}'), NO_JOURNAL, "c")


@pytest.mark.parametrize(
    ("key", "text", "why"),
    [
        ("cluster", "{}", "format None"),
        ("cluster", encode_cluster(replace(CLUSTER, cluster_id="d")), "of cluster 'd', not 'c'"),
        ("topic_t", "", "unreadable"),
        ("topic_t", encode_topic(replace(TOPIC, name="u")), "it is of topic 'u'"),
        (
            "topic_t",
            encode_topic(replace(TOPIC, controller_epoch=ControllerEpoch(6))),
            "controller epoch 6 wrote it, the journal is of 5",
        ),
        ("topic_t", encode_topic(replace(TOPIC, metadata_version=-1)), "no metadata version"),
        ("later", "[]", "no metadata version"),
    ],
)
def test_other_documents_are_refused(key: str, text: str, why: str) -> None:
    with pytest.raises(ClusterError, match="nothing was kept") as caught:
        check_documents(journal(**{key: text}), NO_JOURNAL, "c")
    assert why in caught.value.message
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_documents_that_are_kept_already_are_not_read_again() -> None:
    found = journal(topic_t="as damaged as it is")
    check_documents(found, found, "c")
