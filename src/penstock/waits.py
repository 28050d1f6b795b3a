"""Waits of a thread for another one that Ctrl-C always ends.

Python handles a signal in the main thread, between two steps of it. A wait for a lock ends early
if the signal comes while it waits; it does not if the signal came just before, or to another
thread: then Ctrl-C would count only once the wait is over. These waits look every `WAKE_S`.
"""

from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Event
from time import monotonic
from typing import Final, TypeVar

WAKE_S: Final = 0.5

Item = TypeVar("Item")


def take(queue: SimpleQueue[Item]) -> Item:
    """The next item, as soon as there is one."""
    while True:
        try:
            return queue.get(timeout=WAKE_S)
        except Empty:
            continue


def result_of(future: Future[Item]) -> Item:
    """Its result, or raises what it raised."""
    while True:
        try:
            return future.result(WAKE_S)
        except TimeoutError:
            if future.done():  # the error is its own, or it ended this moment
                return future.result()


def wait_for(event: Event, timeout_s: float | None) -> bool:
    """Whether it is set; False: not within `timeout_s`."""
    until_s = None if timeout_s is None else monotonic() + timeout_s
    while True:
        left_s = WAKE_S if until_s is None else min(WAKE_S, until_s - monotonic())
        if event.wait(max(0.0, left_s)):
            return True
        if until_s is not None and monotonic() >= until_s:
            return False
