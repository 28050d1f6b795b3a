"""Ends streams whose caller's credentials have ended.

Who opens a stream is asked once, and it may stay open for days. Clients open another with their new
credentials before that; what is ended here has none. Until when credentials count may change while
the stream is open (`tokens.grace`), and the clock may be set, so it is asked again and again.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import time_ns
from typing import Final

from penstock.errors import ClusterError, ErrorCode
from penstock_broker.serving.callers import Caller, with_leeway

LOOK_EVERY_S: Final = 30.0


def wall_s() -> float:
    """Seconds since 1970."""
    return time_ns() / 1e9


@contextmanager
def bounded_by_credentials(who: Caller, now_s: Callable[[], float] = wall_s) -> Iterator[None]:
    """Cancels what the running task does in the block once the credentials count no longer.

    Then raises ClusterError(CREDENTIALS_EXPIRED). `now_s`: seconds since 1970.
    """
    task = asyncio.current_task()
    if who.expires_s is None or task is None:
        yield
        return
    expires_s, loop = who.expires_s, asyncio.get_running_loop()
    is_over = False
    timer: asyncio.TimerHandle

    def end_or_look_again() -> None:
        nonlocal is_over, timer
        left_s = who.counts_until(expires_s) - now_s()
        if left_s > 0:
            timer = loop.call_later(min(left_s, LOOK_EVERY_S), end_or_look_again)
            return
        is_over = True
        task.cancel()

    usual_s = with_leeway(expires_s) - now_s()
    timer = loop.call_later(max(0.0, min(usual_s, LOOK_EVERY_S)), end_or_look_again)
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
