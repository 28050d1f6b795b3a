"""Offsets as stored in a Spark checkpoint: canonical JSON that outlives releases.

Spark compares offsets as text, so one position has exactly one text: keys sorted recursively,
integers only. Two forms, told apart by their keys:

    {"start": {"edge": "latest"}, "v": 1}
        the answer of initialOffset: the user's words. Never the end of a batch.

    {"from": {"orders/3": 0}, "ids": {"orders": "9b2d…"}, "t": {"orders/0": 17, …}, "v": 1}
        t     where the batch ends, per partition (the next batch starts there)
        from  where partitions begin that the batch before did not have (all, in batch 0), so
              that a replay after a crash reads exactly the same records
        ids   topic ids: a topic created again under its name is another topic

`v` is the version of the form. Every version ever written stays readable; an unknown one is an
error, because guessing would lose or repeat records.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.core.types import TopicPartition
from penstock.errors import MisuseError
from penstock.spark.boundary import (
    Boundary,
    from_json,
    positions_from_json,
    positions_to_json,
    to_json,
)

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Symbolic:
    """Where the user wants to start, not yet resolved."""

    start: Boundary


@dataclass(frozen=True, slots=True)
class Concrete:
    """Where a batch ends.

    `positions`: next offset to read, per partition. `begins`: where this batch begins in
    partitions that its predecessor did not hold. `topic_ids`: id per topic name, of all topics
    in `positions` whose id is known.
    """

    positions: Mapping[TopicPartition, int]
    begins: Mapping[TopicPartition, int] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)


StreamOffset = Symbolic | Concrete


def encode(offset: StreamOffset) -> dict[str, Any]:
    """The JSON form. `json.dumps` of two equal offsets gives equal text."""
    if isinstance(offset, Symbolic):
        return _canonical({"v": VERSION, "start": to_json(offset.start)})
    return _canonical(
        {
            "v": VERSION,
            "t": positions_to_json(offset.positions),
            "from": positions_to_json(offset.begins),
            "ids": dict(offset.topic_ids),
        }
    )


def decode(value: object) -> StreamOffset:
    """Reads any version ever written.

    Raises MisuseError for an unknown version (a newer release wrote the checkpoint) and for
    anything that is not an offset of this source.
    """
    if not isinstance(value, dict) or "v" not in value:
        raise MisuseError(
            f"the checkpoint contains an offset that is not Penstock's: {str(value)[:200]}; use "
            "another checkpointLocation"
        )
    if value["v"] != VERSION or type(value["v"]) is not int:
        raise MisuseError(
            f"the checkpoint contains an offset of version {value['v']!r}, but this release "
            f"reads version {VERSION}: run the release that wrote it, or a newer one"
        )
    match value:
        case {"start": start, **rest} if rest.keys() == {"v"}:
            return Symbolic(from_json(start))
        case {"t": positions, "from": begins, "ids": dict(ids), **rest} if rest.keys() == {"v"}:
            return Concrete(
                positions_from_json(positions), positions_from_json(begins), _topic_ids(ids)
            )
    raise MisuseError(f"the checkpoint contains a damaged offset: {str(value)[:200]}")


def _topic_ids(ids: dict[Any, Any]) -> dict[str, str]:
    if not all(isinstance(k, str) and isinstance(v, str) for k, v in ids.items()):
        raise MisuseError(f"the checkpoint contains damaged topic ids: {str(ids)[:200]}")
    return ids


def _canonical(value: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _canonical(value[key]) if isinstance(value[key], dict) else value[key]
        for key in sorted(value)
    }
