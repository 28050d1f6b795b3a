"""What a broker checks before it keeps a journal, and a controller before it adopts one.

A promise holds for good, and a journal's documents are written to the store by the next take-over,
whoever sent them. So a broker believes only what a controller can have sent. Who takes over checks
again: the file may have been damaged or changed since, or kept by a release that did not check.
"""

import json
from collections.abc import Mapping
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
from penstock.core.control.storage import StoredText
from penstock.core.types import ControllerEpoch
from penstock.errors import ClusterError, ErrorCode

EPOCH_JUMP_MAX: Final = 1_000_000
"""How far an epoch may be ahead of what a broker has promised or seen. Each take-over raises it by
one and takes seconds at least, because a lease runs out before: this many fill months in which the
broker did not run. All epochs that there are would need a million million such promises."""

VERSION_JUMP_MAX: Final = 1_000_000_000
"""How far a journal's metadata versions may be ahead of the store's: each change raises them by
one, and a thousand changes a second would need eleven days without the store."""
_UNREADABLE: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError)
"""What reading a forged text raises that its decoder does not expect."""


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
    try:
        _check_texts(journal, kept, cluster_id)
    except ClusterError as error:
        raise ClusterError(f"{error.message}; nothing was kept", error.code) from None


def problem_of(
    journal: Journal, trusted: Journal, found: Mapping[str, StoredText], cluster_id: str
) -> str:
    """Why a controller that takes over must not adopt what a broker has kept; "" if it may.

    Documents in `trusted` are not read again. `found`: the store, whose cluster is `cluster_id`.
    """
    try:
        _check_texts(journal, trusted, cluster_id)
        _check_versions(journal, found)
        _check_topic_ids(journal, found)
    except ClusterError as error:
        return error.message
    return ""


def _check_texts(journal: Journal, known: Journal, cluster_id: str) -> None:
    for key, text in journal.documents.items():
        if known.documents.get(key) != text:
            _check_document(key, text, journal.controller_epoch, cluster_id)
    if CLUSTER_KEY in journal.removed:
        raise _invalid(CLUSTER_KEY, "it would remove it")


def _check_versions(journal: Journal, found: Mapping[str, StoredText]) -> None:
    """A version that is out of reach would stay the newest for good."""
    stored = max((metadata_version(one.text) for one in found.values()), default=0)
    written = {key: metadata_version(text) for key, text in journal.documents.items()}
    for key, version in (*written.items(), *journal.removed.items()):
        if version > stored + VERSION_JUMP_MAX:
            raise _invalid(
                key,
                f"metadata version {version} is more than {VERSION_JUMP_MAX:,} ahead of {stored}, "
                "the newest in the store",
            )


def _check_topic_ids(journal: Journal, found: Mapping[str, StoredText]) -> None:
    """A topic has one name. Another id under the same name is a topic that was made again."""
    stays = {
        key: stored.text
        for key, stored in found.items()
        if key not in journal.documents and key not in journal.removed
    }
    named: dict[str, str] = {}
    for key, text in (*stays.items(), *journal.documents.items()):
        if not key.startswith(TOPIC_KEY_PREFIX):
            continue
        topic_id = _topic_id(text)
        other = named.setdefault(topic_id, key)
        if topic_id and other != key and key in journal.documents:
            raise _invalid(key, f"its topic id {topic_id[:100]!r} is that of {other[:100]!r}")


def _topic_id(text: str) -> str:
    """Empty for a text of the store that cannot be read: loading it reports what is wrong."""
    try:
        return str(json.loads(text)["topic_id"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""


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
    except _UNREADABLE as error:
        raise _invalid(key, f"it is unreadable ({type(error).__name__})") from None
    if written > epoch:
        raise _invalid(key, f"controller epoch {written} wrote it, the journal is of {epoch}")
    if metadata_version(text) < 0:
        raise _invalid(key, "it has no metadata version")


def _invalid(key: str, why: str) -> ClusterError:
    return ClusterError(
        f"document {key[:100]!r} of the journal is not one that a controller writes: {why}",
        ErrorCode.INVALID_REQUEST,
    )
