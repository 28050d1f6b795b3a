"""The time as Kubernetes writes it."""

from datetime import UTC, datetime


def now_text() -> str:
    """RFC 3339 in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def now_micros() -> str:
    """RFC 3339 in UTC with microseconds, as Events have it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
