"""What the admin says of damage: how far the search for it is, and which logs differ."""

from dataclasses import dataclass

from penstock.client.model import OffsetSpan
from penstock.core.types import TopicPartition


@dataclass(frozen=True, slots=True)
class ScrubbedLog:
    """The log that a broker reads now. `offset`: what is next; its pass ends at `end_offset`."""

    where: TopicPartition
    offset: int
    end_offset: int
    bytes_per_second: int


@dataclass(frozen=True, slots=True)
class LogDifference:
    """A part of a broker's log that was not as that of `leader`, which led, though both read well.

    `own`, `leaders`: digests of both; replicas with equal ones have equal batches there.
    `found_ms`: since 1970.
    """

    where: TopicPartition
    offsets: OffsetSpan
    leader: int
    own: str
    leaders: str
    found_ms: int


@dataclass(frozen=True, slots=True)
class ScrubDescription:
    """How far a broker has read its logs.

    `due`: replicas that wait, with the one that is read. `damaged`: being mended, not scrubbed
    meanwhile. `oldest_ms`: how long ago the log that waits longest was last read as a whole, or
    came to the broker. In the present run of the broker: `read_bytes`, `damage_found`,
    `compared_ranges` (parts of logs compared with the leader's). `waits`: why nothing is read
    although something is due; empty: it is read.
    """

    broker_id: int
    replicas: int
    due: int
    damaged: int
    reading: ScrubbedLog | None
    oldest_ms: int
    read_bytes: int
    damage_found: int
    waits: str
    compared_ranges: int = 0
    differences: tuple[LogDifference, ...] = ()
