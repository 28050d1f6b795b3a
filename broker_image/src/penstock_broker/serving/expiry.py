"""Ends streams whose caller's credentials have ended.

Who opens a stream is asked once, and it may stay open for days. Clients open another with their new
credentials before that; what is ended here has none.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import time_ns

from penstock.errors import ClusterError, ErrorCode
from penstock_broker.serving.callers import LEEWAY_S, Caller


def wall_s() -> float:
    """Seconds since 1970."""
    return time_ns() / 1e9


@contextmanager
def bounded_by_credentials(who: Caller, now_s: Callable[[], float] = wall_s) -> Iterator[None]:
    """Cancels what the running task does in the block `LEEWAY_S` after the credentials' end.

    Then raises ClusterError(CREDENTIALS_EXPIRED). `now_s`: seconds since 1970.
    """
    task = asyncio.current_task()
    if who.expires_s is None or task is None:
        yield
        return
    is_over = False

    def end() -> None:
        nonlocal is_over
        is_over = True
        task.cancel()

    left_s = who.expires_s + LEEWAY_S - now_s()
    timer = asyncio.get_running_loop().call_later(max(0.0, left_s), end)
    try:
        yield
    except asyncio.CancelledError:
        # A second request to cancel, as when the caller has gone, stays one.
        if not is_over or task.uncancel() > 0:
            raise
        raise _expired(who) from None
    finally:
        timer.cancel()


def _expired(who: Caller) -> ClusterError:
    return ClusterError(
        f"the credentials of {who.principal} expired while the stream was open: open it again with "
        "new ones",
        ErrorCode.CREDENTIALS_EXPIRED,
    )
