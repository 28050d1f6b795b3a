"""What the driver needs to know about a cluster, as a seam, and decisions based on it.

`OffsetsClient` is implemented by `cluster.ClusterOffsets` (real) and by a page of test code.
`resolve` turns the user's words into offsets; `require_selected` says when a missing topic is
the user's mistake (never seen before) and not data loss (read before, see `data_loss`).
"""

import re
from collections.abc import Iterable, Mapping
from typing import Protocol

from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode, MisuseError
from penstock.spark.boundary import Boundary, ByTime, Edge, Otherwise, Query, queries
from penstock.spark.data_loss import LogView
from penstock.spark.options import Assign, Selection, Subscribe, SubscribePattern


class OffsetsClient(Protocol):
    """Look-ups, each with a deadline; they raise PenstockError."""

    def view(self, read_before: Iterable[str] = ()) -> LogView:
        """The selected partitions that exist, their ends (last stable offsets), topic ids.

        `read_before`: topics that are asked for by name where a pattern selects them, because one
        broker's list may lack them.
        """

    def offsets(self, asked: Mapping[TopicPartition, Query]) -> dict[TopicPartition, int]:
        """The offset each query stands for; -1 = no record at or after the timestamp."""

    def row_bytes(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        """Mean stored size of a record, of partitions that have any."""

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits a query's position to a consumer group (`group`)."""


def starts(
    client: OffsetsClient, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Log starts; asks nothing for no partitions."""
    asked: dict[TopicPartition, Query] = dict.fromkeys(partitions, Edge.EARLIEST)
    return client.offsets(asked) if asked else {}


def resolve(
    client: OffsetsClient, boundary: Boundary, ends: Mapping[TopicPartition, int], option: str
) -> dict[TopicPartition, int]:
    """The boundary as offsets, for the partitions of `ends`.

    `latest` is taken from `ends`, so that start and end come from one lookup. Raises MisuseError,
    naming `option`, if the boundary lists other partitions, or has a timestamp after the last
    record where that is an error.
    """
    asked = queries(boundary, ends, option)
    open_questions = {tp: query for tp, query in asked.items() if query is not Edge.LATEST}
    found = client.offsets(open_questions) if open_questions else {}
    resolved = {}
    for tp, query in asked.items():
        offset = found.get(tp, ends[tp])
        if isinstance(query, ByTime) and offset < 0:
            offset = _without_record(tp, query, ends[tp], option)
        resolved[tp] = offset
    return resolved


def _without_record(tp: TopicPartition, query: ByTime, end: int, option: str) -> int:
    if query.otherwise is Otherwise.LATEST:
        return end
    raise MisuseError(
        f"option {option}: {tp} has no record at or after {query.timestamp_ms} ms; use an earlier "
        "time, or set startingOffsetsByTimestampStrategy to latest"
    )


def selects(selection: Selection, tp: TopicPartition) -> bool:
    """Whether the options name this partition, existing or not."""
    match selection:
        case Subscribe(topics):
            return tp.topic in topics
        case Assign(partitions):
            return tp in partitions
        case SubscribePattern(pattern):
            return re.fullmatch(pattern, tp.topic) is not None


def no_longer_selected(selection: Selection, tp: TopicPartition) -> str:
    """In words, for a partition of the checkpoint that the options do not name."""
    match selection:
        case Subscribe():
            option = "subscribe"
        case Assign():
            option = "assign"
        case SubscribePattern():
            option = "subscribePattern"
    return f"{tp} is no longer in the option {option}, but the checkpoint reads it"


def require_still_selected(selection: Selection, read_before: Iterable[TopicPartition]) -> None:
    """Raises MisuseError for a partition of the checkpoint that the options do not name."""
    for tp in sorted(read_before):
        if not selects(selection, tp):
            raise MisuseError(
                f"{no_longer_selected(selection, tp)}: put it back, start a new checkpoint, or set "
                "the option failOnDataLoss to false to go on without it"
            )


def require_selected(selection: Selection, view: LogView) -> None:
    """Raises ClusterError(UNKNOWN_TOPIC, UNKNOWN_PARTITION) for names that do not exist.

    Look for losses first: what was read before is no mistake. A pattern may match nothing yet.
    """
    match selection:
        case Subscribe(topics):
            existing = {tp.topic for tp in view.ends}
            for topic in topics:
                if topic not in existing:
                    raise ClusterError(
                        f"option subscribe names topic {topic}, which does not exist; create it "
                        "first, or correct the name",
                        ErrorCode.UNKNOWN_TOPIC,
                    )
        case Assign(partitions):
            for tp in partitions:
                if tp not in view.ends:
                    raise ClusterError(
                        f"option assign names {tp}, which does not exist; correct topic or "
                        "partition",
                        ErrorCode.UNKNOWN_PARTITION,
                    )
        case _:
            pass
