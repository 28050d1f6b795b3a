"""What a broker checks before it keeps what a controller sends.

A promise holds for good, and a journal's documents are written to the store by the next take-over,
whoever sent them. So a broker believes only what a controller can have sent.
"""

from typing import Final

from penstock.core.control.documents import (
    CLUSTER_KEY,
    TOPIC_KEY_PREFIX,
    decode_cluster,
    decode_topic,
    topic_key,
)
from penstock.core.control.journal.contract import Journal
from penstock.core.control.journal.documents import metadata_version
from penstock.core.types import ControllerEpoch
from penstock.errors import ClusterError, ErrorCode

EPOCH_JUMP_MAX: Final = 1_000_000
"""How far an epoch may be ahead of what a broker has promised or seen. Each take-over raises it by
one and takes seconds at least, because a lease runs out before: this many fill months in which the
broker did not run. All epochs that there are would need a million million such promises."""


def check_epoch(epoch: ControllerEpoch, known: int) -> None:
    """Raises ClusterError(INVALID_REQUEST) for an epoch that no cluster can have reached.

    `known`: the newest that the broker has promised or seen.
    """
    if epoch > known + EPOCH_JUMP_MAX:
        raise ClusterError(
            f"controller epoch {epoch} is more than {EPOCH_JUMP_MAX:,} ahead of {known}, the "
            "newest that this broker knows: no cluster has elected so many controllers since; "
            "nothing was promised",
            ErrorCode.INVALID_REQUEST,
        )


def check_documents(journal: Journal, kept: Journal, cluster_id: str) -> None:
    """Raises ClusterError(INVALID_REQUEST) for documents that no controller writes.

    Those in `kept` are not read again: a journal is all changes since it began. `cluster_id`: the
    broker's; "" is not known.
    """
    for key, text in journal.documents.items():
        if kept.documents.get(key) != text:
            _check_document(key, text, journal.controller_epoch, cluster_id)


def _check_document(key: str, text: str, epoch: ControllerEpoch, cluster_id: str) -> None:
    """Documents of kinds that this release does not know only need a version."""
    written = epoch
    try:
        if key == CLUSTER_KEY:
            cluster = decode_cluster(text, key)
            written = cluster.controller_epoch
            if cluster_id and cluster.cluster_id != cluster_id:
                raise _invalid(key, f"it is of cluster {cluster.cluster_id!r}, not {cluster_id!r}")
        elif key.startswith(TOPIC_KEY_PREFIX):
            topic = decode_topic(text, key)
            written = topic.controller_epoch
            if topic_key(topic.name) != key:
                raise _invalid(key, f"it is of topic {topic.name!r}")
    except ClusterError as error:
        raise _invalid(key, error.message) from None
    if written > epoch:
        raise _invalid(key, f"controller epoch {written} wrote it, the journal is of {epoch}")
    if metadata_version(text) < 0:
        raise _invalid(key, "it has no metadata version")


def _invalid(key: str, why: str) -> ClusterError:
    return ClusterError(
        f"document {key[:100]!r} of the journal is not one that a controller writes: {why}; "
        "nothing was kept",
        ErrorCode.INVALID_REQUEST,
    )
