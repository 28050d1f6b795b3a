"""Ctrl-C ends a wait also if another thread gets the signal, so that it wakes no lock."""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Event
from typing import Self

import pytest

from penstock.cli.at_once import at_once
from penstock.client.loop_thread import shared_loop
from penstock.client.producer.delivery import DeliveryError, Outcome
from penstock.errors import ErrorCode
from penstock.waits import WAKE_S, result_of, take, wait_for

FOR_EVER_S = 10.0


@pytest.fixture(autouse=True)
def python_handles_it() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Press:
    """Ctrl-C in another thread while this one waits; after a long time, the end of the wait."""

    def __init__(self, end: Callable[[], object]) -> None:
        self._end, self.over = end, False
        self.begun, self._left = Event(), Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def _work(self) -> None:
        self.begun.wait()
        self._left.wait(0.2)  # so that it waits by now
        signal.raise_signal(signal.SIGINT)  # goes to the thread that calls it
        if not self._left.wait(FOR_EVER_S):
            self.over = True
            self._end()

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()


def ends(wait: Callable[[], object], end: Callable[[], object]) -> None:
    with Press(end) as press:

        def interrupted() -> None:
            press.begun.set()
            wait()

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert not press.over, "Ctrl-C counted only once the wait was over"


def test_for_a_queue() -> None:
    queue: SimpleQueue[int] = SimpleQueue()
    ends(lambda: take(queue), lambda: queue.put(1))


def test_for_a_future() -> None:
    future: Future[int] = Future()
    ends(lambda: result_of(future), lambda: future.set_result(1))


@pytest.mark.parametrize("timeout_s", [None, 60.0])
def test_for_an_event(timeout_s: float | None) -> None:
    event = Event()
    ends(lambda: wait_for(event, timeout_s), event.set)


def test_of_questions_asked_at_once() -> None:
    answered = Event()
    ends(lambda: at_once([answered.wait]), answered.set)


def test_of_a_sync_client() -> None:
    loop, answered = shared_loop(), asyncio.Event()

    async def asks() -> None:
        await answered.wait()

    def end() -> None:
        loop.loop.call_soon_threadsafe(answered.set)

    ends(lambda: loop.run(asks()), end)
    ends(lambda: loop.run_with_errands(asks()), end)


def test_for_a_delivery() -> None:
    outcome = Outcome(loop=None)
    late = DeliveryError("late", ErrorCode.CLOSED, topic="t", partition=0, unknown_outcome=True)
    ends(lambda: outcome.wait(None), lambda: outcome.fail(late))


class TestOtherwise:
    def test_a_wait_has_the_result_of_what_ends_later(self) -> None:
        queue: SimpleQueue[int] = SimpleQueue()
        future: Future[int] = Future()
        event = Event()

        def later() -> None:
            Event().wait(2.5 * WAKE_S)
            queue.put(1)
            future.set_result(2)
            event.set()

        thread = threading.Thread(target=later)
        thread.start()
        assert (take(queue), result_of(future), wait_for(event, None)) == (1, 2, True)
        thread.join()

    def test_a_timeout_of_its_own_is_passed_on(self) -> None:
        future: Future[int] = Future()
        future.set_exception(TimeoutError("its own"))
        with pytest.raises(TimeoutError, match="its own"):
            result_of(future)

    def test_a_time_that_is_over_ends_it(self) -> None:
        assert not wait_for(Event(), 0.0)
        assert not wait_for(Event(), -1.0)
        assert not wait_for(Event(), 0.01)
