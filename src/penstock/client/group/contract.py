"""Events and effects of a group member's machine; `membership.py` decides.

    Event ──▶ Membership.handle ──▶ Ready, whose fields are carried out in their order

Events come from the user's calls (through the consumer), from the member's stream and from the
clock. Everything here is plain data; partitions carry their topic's id, because a topic that is
created again is a different topic.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from penstock.core.types import TopicPartition
from penstock.errors import ErrorCode, PenstockError


class GroupPartition(NamedTuple):
    """A partition with its topic's id: a topic that is created again has different partitions."""

    topic_id: str
    topic: str
    partition: int

    @property
    def where(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


Partitions = frozenset[GroupPartition]
NONE: Final[Partitions] = frozenset()


@dataclass(frozen=True, slots=True)
class Wish:
    """What a member subscribes to: topics by name and, if not empty, those a pattern matches."""

    topics: tuple[str, ...] = ()
    pattern: str = ""


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds. Retries double from `retry_first_ms` to `retry_max_ms`."""

    session_timeout_ms: int
    max_poll_interval_ms: int
    retry_first_ms: int
    retry_max_ms: int


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The user's subscription; None = leave the group."""

    wish: Wish | None


@dataclass(frozen=True, slots=True)
class PollBegan:
    """The user polls: it is done with the records it has."""


@dataclass(frozen=True, slots=True)
class PollEnded:
    """The user got an answer and is processing it."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. `yielded` counts records taken one by one: a sign of life, like a poll."""

    yielded: int = 0


@dataclass(frozen=True, slots=True)
class HelloSaid:
    """The stream that was asked for is open and its hello is on the way: the coordinator may give
    the member a seat, heard or not."""


@dataclass(frozen=True, slots=True)
class Joined:
    """First answer on a stream."""

    member_epoch: int
    heartbeat_interval_ms: int
    session_timeout_ms: int


@dataclass(frozen=True, slots=True)
class Assigned:
    """All that the member may own from now on; `number` counts on this stream."""

    member_epoch: int
    partitions: Partitions
    number: int


@dataclass(frozen=True, slots=True)
class Heard:
    """The coordinator is alive."""


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """`error` None: with OK, after a leave. `throttle_ms`: come back no earlier. `on_purpose`: this
    side ended it, to open another at once."""

    error: PenstockError | None
    throttle_ms: int = 0
    on_purpose: bool = False


@dataclass(frozen=True, slots=True)
class Released:
    """The consumer has given these up: they are no longer read or committed."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Fenced:
    """A commit was refused because the consumer is no longer a member."""

    code: ErrorCode


Event = (
    Subscribed
    | PollBegan
    | PollEnded
    | Tick
    | HelloSaid
    | Joined
    | Assigned
    | Heard
    | StreamEnded
    | Released
    | Fenced
)


@dataclass(frozen=True, slots=True)
class Hello:
    """How to open a stream. `new_member_id`: generate one first."""

    member_epoch: int
    owned: Partitions
    wish: Wish
    new_member_id: bool


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """`owned` None: unchanged. `number`: the newest assignment taken into account, 0 = none."""

    owned: Partitions | None = None
    number: int = 0
    wish: Wish | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """`keep_seat`: a static member that will come back."""

    keep_seat: bool


@dataclass(slots=True)
class Farewell:
    """A leave that no coordinator has confirmed. With a stream: `retry_at_ms` is None."""

    hello: Hello
    until_ms: int
    said: bool
    retry_at_ms: int | None


@dataclass(slots=True, kw_only=True)
class Ready:
    """What the shell does, in the order of the fields.

    Attributes:
        close: End the current stream; its messages are no longer needed.
        lost: Stop reading these at once: others may have them. Notify the user in the next poll.
        revoke: In the next poll, let the user commit and stop reading; then send `Released`.
        take: Owned from now on: find positions, notify the user, read.
        send: To the coordinator, in this order.
        open: Open a stream.
        failed: Polls raise this until the user subscribes again.
        notice: One line for the log.
        wake_at_ms: When to send `Tick` at the latest; None = not needed.
    """

    close: bool = False
    lost: Partitions = NONE
    revoke: Partitions = NONE
    take: Partitions = NONE
    send: list[Heartbeat | Leave] = field(default_factory=list)
    open: Hello | None = None
    failed: PenstockError | None = None
    notice: str = ""
    wake_at_ms: int | None = None
