"""A task's cancellation must not get lost in gRPC.

The first read of a stream awaits a task of gRPC's own, which connects, and which swallows
CancelledError. Whoever is cancelled in that moment does not hear of it: the read fails as if the
peer had gone, and a loop that connects again goes on for ever, a stopping process with it.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def heeding_cancellation() -> Iterator[None]:
    """Around awaits on a stream: raises CancelledError if the task was cancelled meanwhile.

    Whatever the awaited call returned or raised. Cancelled before: nothing changes, so that a
    task may still say goodbye while it ends.
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
