"""The clock of all deadlines in the client; what pure parts get as `now_ms`."""

from time import monotonic_ns


def now_ms() -> int:
    """Monotonic milliseconds; they say nothing about the time of day."""
    return monotonic_ns() // 1_000_000
