"""Checks what a member says in its hello, before anything changes.

Every refusal names the field, the value seen, the limit and what to do; then nothing has changed.
"""

from typing import Final

from penstock.core.groups.catalog import Subscription
from penstock.core.groups.config import GroupConfig, check_group_id
from penstock.core.groups.contract import MemberJoined
from penstock.core.groups.pattern import TopicPattern
from penstock.core.groups.records import MemberRecord
from penstock.core.limits import (
    ASSIGNORS,
    REBALANCE_TIMEOUT_MAX_MS,
    REBALANCE_TIMEOUT_MIN_MS,
    SESSION_TIMEOUT_MAX_MS,
    SESSION_TIMEOUT_MIN_MS,
)
from penstock.core.topic import is_internal, validate_topic_name
from penstock.errors import ClusterError, ErrorCode, MisuseError

_TEXTS: Final = (
    "member_id",
    "instance_id",
    "client_id",
    "client_host",
    "rack",
    "transactional_id",
)


def check_hello(config: GroupConfig, event: MemberJoined) -> MemberRecord:
    """The member in its stored form. Raises PenstockError."""
    check_group_id(event.group_id)
    if not event.member_id:
        raise invalid("the member id is empty; send a UUID made by the client")
    for name in _TEXTS:
        text = getattr(event, name)
        if len(text) > config.text_max_chars or not text.isprintable():
            raise invalid(
                f"{name} {text[:40]!r} has {len(text)} characters; it must have at most "
                f"{config.text_max_chars}, all printable"
            )
    if event.member_epoch < 0:
        raise invalid(
            f"member epoch is {event.member_epoch}; it must be 0 to join, or the "
            "last epoch to rejoin"
        )
    session_ms = event.session_timeout_ms or config.session_timeout_ms
    rebalance_ms = event.rebalance_timeout_ms or config.rebalance_timeout_ms
    _check_range("session", session_ms, (SESSION_TIMEOUT_MIN_MS, SESSION_TIMEOUT_MAX_MS))
    _check_range("rebalance", rebalance_ms, (REBALANCE_TIMEOUT_MIN_MS, REBALANCE_TIMEOUT_MAX_MS))
    assignor = event.assignor or ASSIGNORS[0]
    if assignor not in ASSIGNORS:
        raise ClusterError(
            f"assignor {assignor[:40]!r} is not known; known are {', '.join(ASSIGNORS)}",
            ErrorCode.UNSUPPORTED_ASSIGNOR,
        )
    topics = check_subscription(config, event.subscription)
    return MemberRecord(
        instance_id=event.instance_id,
        client_id=event.client_id,
        client_host=event.client_host,
        rack=event.rack,
        topics=topics,
        pattern=event.subscription.pattern,
        assignor=assignor,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        transactional_id=event.transactional_id,
    )


def check_subscription(config: GroupConfig, subscription: Subscription) -> tuple[str, ...]:
    """The topic names, sorted, each once. Raises PenstockError. Topics need not exist yet."""
    topics = tuple(sorted(set(subscription.topics)))
    if not topics and not subscription.pattern:
        raise invalid("the member subscribes to nothing; name topics or a pattern")
    if len(topics) > config.subscription_topics_max:
        raise invalid(
            f"the member subscribes to {len(topics)} topics by name; the limit is "
            f"{config.subscription_topics_max}; use a pattern"
        )
    for name in topics:
        validate_topic_name(name)
        if is_internal(name):
            raise MisuseError(
                f"topic {name!r} is internal: clients cannot read it; subscribe to other topics",
                ErrorCode.INVALID_TOPIC_NAME,
            )
    if subscription.pattern:
        TopicPattern(subscription.pattern)
    return topics


def _check_range(what: str, seen_ms: int, limits: tuple[int, int]) -> None:
    if not limits[0] <= seen_ms <= limits[1]:
        raise invalid(f"{what} timeout is {seen_ms} ms; it must be {limits[0]} to {limits[1]} ms")


def invalid(what: str) -> ClusterError:
    """The request is wrong, and is refused as a whole."""
    return ClusterError(what, ErrorCode.INVALID_REQUEST)
