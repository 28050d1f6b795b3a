"""The time as Kubernetes writes it."""

from datetime import UTC, datetime


def now_text() -> str:
    """RFC 3339 in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_between(since: str, until: str) -> float:
    """Of two times as Kubernetes writes them."""
    return (datetime.fromisoformat(until) - datetime.fromisoformat(since)).total_seconds()


def now_micros() -> str:
    """RFC 3339 in UTC with microseconds, as Events have it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
