"""A task's cancellation must not get lost in gRPC, nor in a TaskGroup.

The first read of a stream awaits a task of gRPC's own, which connects, and which swallows
CancelledError. A TaskGroup whose body raised, and which waits for its tasks, swallows it, too, and
raises the group of errors (CPython 3.11 and 3.12). A task that is cancelled at that moment does not
notice: it fails as if the peer had disconnected, a loop that reconnects runs for ever, and a
stopping process never stops.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def heeding_cancellation() -> Iterator[None]:
    """Around awaits on a stream: raises CancelledError if the task was cancelled in the meantime.

    This holds whatever the awaited call returned or raised. If the task was cancelled before,
    nothing changes, so that it can still send a last message while it ends.
    """
    task = asyncio.current_task()
    assert task is not None, "inside a task"
    before = task.cancelling()
    try:
        yield
    except Exception as error:
        if task.cancelling() > before:
            raise asyncio.CancelledError from error
        raise
    if task.cancelling() > before:
        raise asyncio.CancelledError


def being_cancelled() -> bool:
    """Whether the current task was asked to end.

    gRPC raises CancelledError as well in a call whose channel another task closes. That is an
    error of the call, and must not look as if the caller's task were cancelled.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
