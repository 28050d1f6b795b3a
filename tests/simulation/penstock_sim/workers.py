"""Plays many seeds at once: one process per core, one seed per process at a time.

    seeds ──▶ Workers.histories ──seed──▶ a process: `simulate` ──History──▶ back, as they end

Processes are forked: they play the code that is loaded here. They end with this process, in any
case: they are terminated on leaving the `with`, and a pipe that is closed at the other end ends the
rest. Ctrl-C reaches all of them at once; only this process reacts to it.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Final, Self

from penstock_sim.world import simulate

PAUSE_S: Final = 1.0
"""How often the caller that waits for histories gets control when none ends."""
_END_S: Final = 10.0
_GARBAGE_EVERY: Final = 20_000
"""Objects created and not freed between collections; a history takes some ten megabytes."""
_SIGNALS: Final = frozenset({signal.SIGINT, signal.SIGTERM})


@dataclass(frozen=True, slots=True)
class Lost:
    """The process that played this seed ended: by a signal, if `exit_code` is negative."""

    seed: int
    exit_code: int | None


@dataclass(slots=True, eq=False)
class _Worker:
    process: BaseProcess
    pipe: Connection
    seed: int | None = None
    """The seed that it plays."""


def cores() -> int:
    """How many processes can run at once here."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """Use as a context manager. One worker is this process itself."""

    def __init__(self, count: int, play: Callable[[int], object] | None = None) -> None:
        """`play`: what to run for a number; None: plays the history of a seed."""
        self.count = count
        self._play = play
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        if self.count > 1:
            for _ in range(self.count):
                self._start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join(_END_S)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.pipe.close()
        self._workers = []

    def histories(self, seeds: Iterable[int]) -> Iterator[Any]:
        """Plays `seeds` in order, yields histories, or what `play` returns, as they end, or `Lost`.

        None: a second has passed. The next seed is taken from `seeds` whenever a process is free;
        at its end, or when the caller stops, running histories are played to their end or
        terminated with the `with`.
        """
        waiting = iter(seeds)
        if self.count == 1:
            yield from map(self._play or simulate, waiting)
            return
        for worker in list(self._workers):
            self._hand_out(worker, waiting)
        while playing := [worker for worker in self._workers if worker.seed is not None]:
            ready = wait([worker.pipe for worker in playing], PAUSE_S)
            if not ready:
                yield None
            for worker in playing:
                if worker.pipe in ready:
                    found = self._take(worker)
                    self._hand_out(worker if worker in self._workers else self._start(), waiting)
                    yield found

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("fork")
        mine, theirs = context.Pipe()
        others = [mine, *(worker.pipe for worker in self._workers)]
        process = context.Process(target=_play, args=(theirs, others, self._play), daemon=True)
        # Until the new process has set its signal handlers, signals are blocked.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        worker = _Worker(process, mine)
        self._workers.append(worker)
        return worker

    @staticmethod
    def _hand_out(worker: _Worker, waiting: Iterator[int]) -> None:
        worker.seed = next(waiting, None)
        if worker.seed is not None:
            worker.pipe.send(worker.seed)

    def _take(self, worker: _Worker) -> Any:
        assert worker.seed is not None
        try:
            found = worker.pipe.recv()
        except (EOFError, ConnectionError):
            worker.process.join(_END_S)
            worker.pipe.close()
            self._workers.remove(worker)
            return Lost(worker.seed, worker.process.exitcode)
        return found


def _play(pipe: Connection, others: list[Connection], play: Callable[[int], object] | None) -> None:
    """A worker: plays the seeds it gets until its parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    for other in others:
        other.close()  # otherwise its siblings would not notice the end of the parent
    # Loaded code stays, and a history creates few cycles, but Python would search for cycles all
    # the time.
    gc.freeze()
    gc.set_threshold(_GARBAGE_EVERY)
    try:
        while True:
            pipe.send((play or simulate)(pipe.recv()))
    except (EOFError, ConnectionError):
        return
