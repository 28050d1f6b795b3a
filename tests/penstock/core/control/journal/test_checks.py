"""What a broker does not believe: epochs out of reach, documents that no controller writes."""

import json
from dataclasses import replace
from typing import Any

import pytest

from penstock.core.control.documents import (
    ClusterDocument,
    TopicDocument,
    encode_cluster,
    encode_topic,
)
from penstock.core.control.journal.checks import (
    EPOCH_JUMP_MAX,
    VERSION_JUMP_MAX,
    check_documents,
    check_epoch,
    problem_of,
)
from penstock.core.control.journal.contract import NO_JOURNAL, Journal
from penstock.core.control.storage import StoredText
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


# ---------------------------------------------------------------- at a take-over


def stored(**documents: str) -> dict[str, StoredText]:
    found = {key.replace("_", "/"): text for key, text in documents.items()}
    return {key: StoredText(text, "v") for key, text in found.items()}


STORE = stored(cluster=encode_cluster(CLUSTER), topic_t=encode_topic(TOPIC))


def test_what_a_controller_wrote_is_adopted() -> None:
    newer = encode_topic(replace(TOPIC, metadata_version=8))
    again = encode_topic(replace(TOPIC, topic_id=TopicId("another"), metadata_version=9))
    for found in (journal(topic_t=newer), journal(topic_t=again), NO_JOURNAL):
        assert not problem_of(found, NO_JOURNAL, STORE, "c")
    outdated = encode_topic(replace(TOPIC, metadata_version=1))
    assert not problem_of(journal(topic_t=outdated), NO_JOURNAL, STORE, "c"), "it is not written"


def test_a_name_that_is_free_again_gives_its_topic_id_to_nobody_else() -> None:
    """A topic cannot be renamed, but the same id may be in a journal that removes its old name."""
    moved = encode_topic(replace(TOPIC, name="u", metadata_version=9))
    found = Journal(EPOCH, 1, {"topic/u": moved}, {"topic/t": 8})
    assert not problem_of(found, NO_JOURNAL, STORE, "c")
    kept = Journal(EPOCH, 1, {"topic/u": moved})
    assert "its topic id 'id' is that of 'topic/t'" in problem_of(kept, NO_JOURNAL, STORE, "c")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"format": 1, ', "unreadable"),
        ("[" * 100_000, "unreadable"),
        (encode_topic(TOPIC).replace('"partitions":[]', '"partitions":[[]]'), "unreadable"),
        (encode_topic(TOPIC).replace('"metadata_version":7', '"metadata_version":1e999'), "unread"),
        (encode_topic(replace(TOPIC, name="u")), "it is of topic 'u'"),
        (
            encode_topic(replace(TOPIC, metadata_version=8 + VERSION_JUMP_MAX)),
            "more than 1,000,000,000 ahead of 7, the newest in the store",
        ),
    ],
)
def test_a_damaged_or_forged_document_is_named(text: str, why: str) -> None:
    found = problem_of(journal(topic_t=text), NO_JOURNAL, STORE, "c")
    assert "document 'topic/t' of the journal" in found
    assert why in found


def test_a_cluster_that_is_forged_is_named() -> None:
    found = journal(cluster=encode_cluster(replace(CLUSTER, cluster_id="d")))
    assert "of cluster 'd', not 'c'" in problem_of(found, NO_JOURNAL, STORE, "c")
    parts: list[dict[str, Any]] = [
        {"access": []},
        {"access": {"groups": []}},
        {"quotas": 7},
        {"brokers": [7]},
    ]
    for broken in parts:
        text = json.dumps({**json.loads(encode_cluster(CLUSTER)), **broken})
        assert "unreadable" in problem_of(journal(cluster=text), NO_JOURNAL, STORE, "c"), broken


def test_no_journal_removes_the_cluster() -> None:
    found = Journal(EPOCH, 1, {}, {"cluster": 7})
    assert "it would remove it" in problem_of(found, NO_JOURNAL, STORE, "c")
    with pytest.raises(ClusterError, match="nothing was kept"):
        check_documents(found, NO_JOURNAL, "c")


def test_a_removal_out_of_reach_is_named() -> None:
    found = Journal(EPOCH, 1, {}, {"topic/t": 8 + VERSION_JUMP_MAX})
    assert "ahead of 7" in problem_of(found, NO_JOURNAL, STORE, "c")
