"""The clocks of all deadlines in the client. They say nothing about the time of day."""

import asyncio
from time import monotonic_ns


def now_ms() -> int:
    """Monotonic milliseconds: what pure parts get as `now_ms`."""
    return monotonic_ns() // 1_000_000


def loop_time_s() -> float:
    """Monotonic seconds of the event loop that runs, else RuntimeError: for what waits on it. A
    simulated loop's time is virtual."""
    return asyncio.get_running_loop().time()
