"""Records that a batch was going to read and no longer can.

The log a query reads lives on without it: retention moves the log start, topics are deleted
and created again, and a restored or uncleanly elected replica may end before the query's
position. `find_losses` compares what the query believes with what the cluster says; the shell
raises, or (failOnDataLoss=false) logs the same words and reads what is left.

A topic that is not seen proves nothing: brokers answer the same for one that a user may not see.
Only another id of the same name proves that the old topic was deleted.

Every message names topic and partition, the offsets asked for and those available, and what
to do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.core.types import TopicPartition
from penstock.errors import ErrorCode, PenstockError
from penstock.spark.admission import Positions

_ADVICE = (
    "set the option failOnDataLoss to false to continue with the records that are left, or "
    "start with a new checkpoint"
)
_ADVICE_OUT_OF_SIGHT = (
    "check the user's rules (penstock acl list) and restart the query, which goes on from there; "
    "if the topic was deleted, set the option failOnDataLoss to false to go on without it"
)
_ADVICE_PLANNED = (
    "this batch was going to read it: check the user's rules (penstock acl list) and restart the "
    "query; if the topic was deleted, set the option failOnDataLoss to false, and take the topic "
    "out of the query's options or create one of this name"
)


class DataLossError(PenstockError):
    """Records the query has not read are gone, or out of its sight."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorCode.TRUNCATED_BY_RETENTION)


@dataclass(frozen=True, slots=True)
class Known:
    """What the query believes: next offset per partition, and topic ids as far as recorded."""

    positions: Positions
    topic_ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogView:
    """What the cluster says. A partition that is missing from `ends` does not exist, or the user
    may not see it.

    `starts` may be left out where they are not needed.
    """

    ends: Positions
    topic_ids: Mapping[str, str]
    starts: Positions = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Loss:
    """One partition's loss.

    `resume_at`: where to continue; None = nowhere. `other_topic`: the name now means a different
    topic, whose offsets are unrelated to those requested.
    """

    partition: TopicPartition
    message: str
    resume_at: int | None
    other_topic: bool = False

    @property
    def out_of_sight(self) -> bool:
        """Nothing is known to be lost: the position still holds if the topic is seen again."""
        return self.resume_at is None and not self.other_topic


def find_losses(known: Known, view: LogView) -> list[Loss]:
    """All losses, ordered by partition; at most one per partition."""
    found = (_loss(tp, known, view) for tp in sorted(known.positions))
    return [loss for loss in found if loss is not None]


def _loss(tp: TopicPartition, known: Known, view: LogView) -> Loss | None:
    position = known.positions[tp]
    start, end = view.starts.get(tp, 0), view.ends.get(tp)
    available = "which the new one lacks" if end is None else f"available are {start} to {end}"
    old_id, new_id = known.topic_ids.get(tp.topic, ""), view.topic_ids.get(tp.topic, "")
    if old_id and new_id and old_id != new_id:
        what = (
            f"{tp} was deleted and created again (topic id {old_id}, now {new_id}); the query "
            f"was at offset {position} of the old one, {available}"
        )
        return Loss(tp, what, None if end is None else start, other_topic=True)
    if end is None:
        what = (
            f"{tp} does not exist, or this user may not see it any more; the query was at offset "
            f"{position}"
        )
        return Loss(tp, what, None)
    if position < start:
        what = (
            f"{tp} lost {start - position} records to retention: requested offset {position}, "
            f"{available}"
        )
        return Loss(tp, what, start)
    if position > end:
        what = f"{tp} ends before the query's position: requested offset {position}, {available}"
        return Loss(tp, what, end)
    return None


def clip(
    begin: Positions, end: Positions, losses: Mapping[TopicPartition, Loss], view: LogView
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """What is left to read of [begin, end): for failOnDataLoss=false.

    Partitions that are not seen are dropped. Nothing is read here from a topic that was created
    again: these offsets referred to the old one. A partition not in `losses` stays as it is.
    """
    new_begin, new_end = {}, {}
    for tp, hi in end.items():
        loss = losses.get(tp)
        if loss is None:
            new_begin[tp], new_end[tp] = begin[tp], hi
        elif loss.resume_at is not None and not loss.other_topic:
            new_end[tp] = min(hi, view.ends[tp])
            new_begin[tp] = min(max(begin[tp], view.starts.get(tp, 0)), new_end[tp])
    return new_begin, new_end


def raise_losses(losses: list[Loss], *, planned: bool = False) -> None:
    """Raises DataLossError for the first loss, counting the others; returns if there is none.

    `planned`: a batch was going to read there.
    """
    if losses:
        more = f" (and {len(losses) - 1} more partitions)" if len(losses) > 1 else ""
        advice = _ADVICE
        if losses[0].out_of_sight:
            advice = _ADVICE_PLANNED if planned else _ADVICE_OUT_OF_SIGHT
        raise DataLossError(f"{losses[0].message}{more}; {advice}")
