"""Converts between documents and the store's texts: encodes writes, decodes reads.

A text that cannot be read is never skipped: without a topic's document, its partitions would seem
not to exist. An active controller knows what the text must be, and assumes that it was changed by
hand: it reports the document that it knows, with a version older than any, and the machine writes
it again. A controller that takes over knows nothing: DATA_CORRUPTED ends it, and a person must
restore the object. The same if the cluster's own document is missing beside topics: a new one would
begin at epoch 1, which no broker follows. A newer format was written by another version and is
never overwritten.
"""

import json
from collections.abc import Mapping
from dataclasses import replace

from penstock.core.control import contract as c
from penstock.core.control.documents import (
    CLUSTER_KEY,
    FORMAT_NEWEST,
    TOPIC_KEY_PREFIX,
    ClusterDocument,
    TopicDocument,
    decode_cluster,
    decode_topic,
    encode_cluster,
    encode_topic,
    topic_key,
)
from penstock.core.control.draft import Stored
from penstock.errors import ClusterError, ErrorCode
from penstock_broker.controller.metadata_store.interface import Change, Delete, Put, StoredText
from penstock_broker.observability import EventLog

_OLDER_THAN_ANYTHING = -1
_events = EventLog("controller")


def to_change(write: c.DocumentWrite) -> Change:
    """The store's form of a write."""
    match write:
        case c.PutCluster():
            return Put(CLUSTER_KEY, encode_cluster(write.document), write.expected)
        case c.PutTopic():
            key = topic_key(write.document.name)
            return Put(key, encode_topic(write.document), write.expected)
        case c.RemoveTopic():
            return Delete(topic_key(write.name), write.expected)


def from_texts(
    found: Mapping[str, StoredText], new_cluster_id: str, memory: Stored | None
) -> c.Loaded:
    """What the machine loads. `memory`: the adopted state of an active controller.

    Raises ClusterError(DATA_CORRUPTED): the process must not continue with part of it.
    """
    cluster = None
    topics = []
    for key, stored in found.items():
        if key == CLUSTER_KEY:
            cluster = (_cluster(stored.text, memory), stored.version)
        elif key.startswith(TOPIC_KEY_PREFIX):
            topics.append((_topic(key, stored.text, memory), stored.version))
    if cluster is None and topics and memory is None:
        raise ClusterError(
            f"metadata object {CLUSTER_KEY} is missing beside those of {len(topics)} topics: "
            "somebody has deleted it. Restore it from a backup, or write it again as "
            "docs/operations.md says; nothing was changed",
            ErrorCode.DATA_CORRUPTED,
        )
    _check_formats(cluster, topics)
    return c.Loaded(cluster, tuple(topics), new_cluster_id)


def _check_formats(
    cluster: tuple[ClusterDocument, str] | None, topics: list[tuple[TopicDocument, str]]
) -> None:
    """Raises ClusterError: a topic's document is never of a newer format than the cluster's."""
    for topic, _ in topics:
        if cluster is not None and topic.format > cluster[0].format:
            raise ClusterError(
                f"metadata object {topic_key(topic.name)} has format {topic.format}, but "
                f"{CLUSTER_KEY} has {cluster[0].format}, and no controller writes it so: an older "
                f"{CLUSTER_KEY} was restored; restore the newer one",
                ErrorCode.DATA_CORRUPTED,
            )


def check_cluster_id(wanted: str, loaded: c.Loaded) -> None:
    """Raises ClusterError: another cluster's documents must not be adopted."""
    if not wanted or loaded.cluster is None or loaded.cluster[0].cluster_id == wanted:
        return
    raise ClusterError(
        f"the metadata is of cluster {loaded.cluster[0].cluster_id}, --cluster-id says {wanted}; "
        "correct one of them",
        ErrorCode.CLUSTER_ID_MISMATCH,
    )


def _cluster(text: str, memory: Stored | None) -> ClusterDocument:
    try:
        return decode_cluster(text, CLUSTER_KEY)
    except ClusterError as error:
        if memory is None or _is_newer_format(text):
            raise
        _events.error("unreadable metadata", reason=error.message)
        return replace(memory.cluster, metadata_version=_OLDER_THAN_ANYTHING)


def _topic(key: str, text: str, memory: Stored | None) -> TopicDocument:
    known = memory.topics.get(key.removeprefix(TOPIC_KEY_PREFIX)) if memory is not None else None
    try:
        document = decode_topic(text, key)
        if topic_key(document.name) != key:
            raise ClusterError(  # noqa: TRY301 - handled like any other damage
                f"metadata object {key} holds topic {document.name!r}; restore it from a backup, "
                "nothing was changed",
                ErrorCode.DATA_CORRUPTED,
            )
    except ClusterError as error:
        if known is None or _is_newer_format(text):
            raise
        _events.error("unreadable metadata", reason=error.message)
        return replace(known, metadata_version=_OLDER_THAN_ANYTHING)
    return document


def _is_newer_format(text: str) -> bool:
    try:
        found = json.loads(text)
    except ValueError:
        return False
    number = found.get("format") if isinstance(found, dict) else None
    return isinstance(number, int) and number > FORMAT_NEWEST
