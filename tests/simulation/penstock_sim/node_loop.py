"""One node's asyncio event loop, in virtual time: production shells run on it unchanged.

    call_soon, call_later, futures ─▶ [ ready ] ─▶ a turn, planned with the world's scheduler
    run_in_executor ─▶ a queue per executor ─▶ after its latency: the call, then its future

A node is a process: it has a loop of its own, and nothing of it runs after it was killed. No
`finally` of a killed task runs while the history continues, as after `kill -9`. Its tasks are kept
until the world ends, and then cancelled (`bury`): otherwise Python would close them as soon as they
are unreferenced, at any point of the history.

A node runs `scheduler.RATE` times faster than the world: shells wait for seconds, histories last
only a few. Its clock counts from when its machine was started, which is another moment for each:
a time of 0 is long ago for some and not for others.

Chance decides what a real loop leaves open: how long a turn takes, when a thread is done, and, in
some histories, the order of a turn's callbacks. Futures and tasks are hashed by number, so that
sets of them are iterated in the same order in every run of a seed.
"""

from __future__ import annotations

import asyncio
import contextvars
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor, Future
from functools import partial
from itertools import count
from typing import Any, Final, Self, TypeVar, TypeVarTuple, Unpack

from penstock_sim.scheduler import RATE, Scheduler

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")
_TURN_MS: Final = (0.005, 0.05)
_LONG_TURN_MS: Final = (1, 15)
_LONG_TURNS: Final = 0.004
_UPTIMES: Final = (0.0, 7.0)
"""Powers of ten of seconds, up to four months: what a node's clock shows when a process starts."""
_BURIAL_ROUNDS: Final = 20
_BURIAL_STEPS: Final = 10_000


async def pause(ms: float) -> None:
    """Of the world's milliseconds, in a task of a node's loop whose rate is `RATE`."""
    await asyncio.sleep(ms * RATE / 1000)  # polls nothing: its time is virtual


class SimFuture(asyncio.Future[_T]):
    """A future whose position in a set depends only on the seed."""

    __slots__ = ("_number",)

    def __init__(self, *, loop: NodeLoop) -> None:
        super().__init__(loop=loop)
        self._number = next(loop.numbers)

    def __hash__(self) -> int:
        return self._number


class SimTask(asyncio.Task[_T]):
    """As `SimFuture`."""

    def __init__(
        self,
        coro: Generator[Any, None, _T] | Coroutine[Any, Any, _T],
        *,
        loop: NodeLoop,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> None:
        self._number = next(loop.numbers)
        super().__init__(coro, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self._number


class _Handle(asyncio.Handle):
    """As `asyncio.Handle` without debugging: a history makes ten thousands."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: NodeLoop,
        context: contextvars.Context | None,
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class _Timer(asyncio.TimerHandle):
    """As `_Handle`."""

    __slots__ = ()
    _context: contextvars.Context
    _callback: Callable[..., object]

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: NodeLoop,
        context: contextvars.Context | None,
    ) -> None:
        _Handle.__init__(self, callback, args, loop, context)  # type: ignore[arg-type]
        self._when = when
        self._scheduled = False


class SimExecutor(Executor):
    """Threads of a node: `workers` calls at a time, each taking `latency_ms` of virtual time.

    A call happens at the end of its time, at once. Calls running when the node is killed happen or
    not, by chance: the operating system may have accepted a write.
    """

    def __init__(
        self, loop: NodeLoop, latency_ms: Callable[[], float], *, workers: int = 1
    ) -> None:
        self._loop = loop
        self._latency_ms = latency_ms
        self._free = workers
        self._queue: deque[tuple[Callable[..., Any], tuple[Any, ...], asyncio.Future[Any]]]
        self._queue = deque()
        self._running: list[Callable[[], Any]] = []
        loop.at_kill(self._killed)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Not supported: a node has only one thread of its own, the loop's."""
        raise NotImplementedError("shells reach their executors by `run_in_executor`")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing to do."""

    def run(self, call: Callable[..., _T], args: tuple[Any, ...]) -> asyncio.Future[_T]:
        """Plans a call; the future is the loop's."""
        future: asyncio.Future[_T] = self._loop.create_future()
        self._queue.append((call, args, future))
        self._next()
        return future

    def _next(self) -> None:
        while self._free and self._queue:
            call, args, future = self._queue.popleft()
            if future.cancelled():
                continue
            self._free -= 1
            acts = _Call(call, args)
            self._running.append(acts)
            self._loop.scheduler.after(self._latency_ms(), self._done, acts, future)

    def _done(self, acts: _Call, future: asyncio.Future[Any]) -> None:
        if self._loop.dead:
            return
        if self._loop.paused:
            self._loop.when_running(partial(self._done, acts, future))
            return
        self._running.remove(acts)
        self._free += 1
        try:
            result = acts()
        except Exception as error:  # noqa: BLE001 - the caller gets whatever it raises
            self._loop.call_soon(_fail, future, error)
        else:
            self._loop.call_soon(_fulfil, future, result)
        self._next()

    def _killed(self) -> None:
        """Of running calls, some may have been done: in order, up to some point."""
        for acts in self._running:
            if not self._loop.scheduler.chance(0.5):
                break
            try:
                acts()
            except Exception:  # noqa: BLE001 - no caller is left
                continue


class _Call:
    """A call and its arguments; equal only to itself."""

    __slots__ = ("_args", "_call")

    def __init__(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._call = call
        self._args = args

    def __call__(self) -> Any:
        return self._call(*self._args)


def _fulfil(future: asyncio.Future[Any], result: object) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


class NodeLoop(asyncio.AbstractEventLoop):
    """See the module. `shuffled`: a turn's callbacks run in any order."""

    def __init__(
        self, scheduler: Scheduler, name: str, *, shuffled: bool = False, rate: float = 1
    ) -> None:
        self.scheduler = scheduler
        self.name = name
        self.dead = False
        self.paused = False
        """No turn begins, no thread gets on; what arrives waits."""
        self._paused_until_us = 0
        self._held: list[Callable[[], None]] = []
        self.chance = scheduler.generator(f"loop {name}")
        self._shuffled = shuffled
        self._rate = rate
        self._uptime_s = 10 ** scheduler.generator(f"uptime {name}").uniform(*_UPTIMES)
        self._ready: deque[_Handle | _Timer] = deque()
        self._planned = False
        self.numbers = count(1)
        """Of futures and tasks."""
        self._tasks: list[asyncio.Task[Any]] = []
        self._at_kill: list[Callable[[], None]] = []

    @classmethod
    def of(
        cls, scheduler: Scheduler, name: str, *, shuffled: bool = False, rate: float = 1
    ) -> Self:
        """A loop. To mypy the class is abstract: it has no sockets, signals or child processes."""
        return cls(scheduler, name, shuffled=shuffled, rate=rate)

    # ------------------------------------------------------------ the node's life

    def start(self, coroutine: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        """Runs a coroutine on the node, from outside. Its result is not reported."""
        return self.run(lambda: self.create_task(coroutine))

    def run(self, act: Callable[[], _T]) -> _T:
        """Calls `act` at once, as a callback of this loop would: for the world to act on a node."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            return act()
        finally:
            events._set_running_loop(before)

    def at_kill(self, act: Callable[[], None]) -> None:
        """`act` is called when the node is killed: used by the world, not by shells."""
        self._at_kill.append(act)

    def pause(self, for_ms: float) -> None:
        """SIGSTOP, and SIGCONT later. What the node has sent goes its way; its clock goes on."""
        self.paused = True
        until_us = self.scheduler.now_us + int(for_ms * 1000)
        self._paused_until_us = max(self._paused_until_us, until_us)
        self.scheduler.after(for_ms, self._wake)

    def _wake(self) -> None:
        if self.paused and self.scheduler.now_us >= self._paused_until_us:
            self.resume()

    def resume(self) -> None:
        """SIGCONT now. All timers that came due meanwhile fire in one turn."""
        self.paused = False
        self._paused_until_us = 0
        held, self._held = self._held, []
        for act in held:
            act()
        if self._ready and not self._planned and not self.dead:
            self._plan()

    def when_running(self, act: Callable[[], None]) -> None:
        """Calls `act` now, or when the node is resumed; not if it is killed before."""
        if self.paused:
            self._held.append(act)
        else:
            act()

    def kill(self) -> None:
        """Nothing more of this node runs; what is ready stays so until it is buried."""
        for act in self._at_kill:
            act()
        self.dead = True
        self._held.clear()

    def bury(self) -> None:
        """Ends the tasks of a killed node, at the end of the world; their errors are ignored.

        A task may swallow a cancellation; then it gets another one.
        """
        assert self.dead
        events._set_running_loop(self)
        try:
            for _ in range(_BURIAL_ROUNDS):
                pending = [task for task in self._tasks if not task.done()]
                if not pending:
                    break
                for task in pending:
                    task.cancel()
                for _ in range(_BURIAL_STEPS):
                    if not self._ready:
                        break
                    handle = self._ready.popleft()
                    if not handle.cancelled():
                        handle._run()
        finally:
            events._set_running_loop(None)
        self._tasks.clear()

    # ------------------------------------------------------------ turns

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            random = self.chance.random
            low, high = _LONG_TURN_MS if random() < _LONG_TURNS else _TURN_MS
            self.scheduler.after(low + (high - low) * random(), self._turn)

    def _turn(self) -> None:
        """Runs everything that was ready when the turn began, like `BaseEventLoop._run_once`."""
        self._planned = False
        if self.dead or self.paused:
            return
        ready = self._ready
        if self._shuffled and len(ready) > 1:
            mixed = list(ready)
            self.chance.shuffle(mixed)
            ready = self._ready = deque(mixed)
        events._set_running_loop(self)
        try:
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle._cancelled:
                    try:  # as `handle._run()`, in fewer calls
                        handle._context.run(handle._callback, *handle._args)
                    except Exception as error:  # noqa: BLE001 - the loop's handler gets it
                        self.call_exception_handler({"exception": error})
                if self.dead:
                    return
        finally:
            events._set_running_loop(None)
        if ready:
            self._plan()

    def _fire(self, handle: _Timer) -> None:
        if not self.dead and not handle._cancelled:
            self._ready.append(handle)
            if not self._planned:
                self._plan()

    # ------------------------------------------------------------ asyncio.AbstractEventLoop

    def time(self) -> float:
        return self._uptime_s + self.scheduler.now_us * self._rate / 1_000_000

    def call_soon(
        self,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        if not self._planned and not self.dead:
            self._plan()
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = _Timer(when, callback, args, self, context)
        if not self.dead:
            delay_ms = (when - self.time()) * 1000 / self._rate
            self.scheduler.after(delay_ms, self._fire, handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing to do: the timer stays planned, and then does nothing."""

    def create_future(self) -> asyncio.Future[Any]:
        return SimFuture(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, _T] | Coroutine[Any, Any, _T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[_T]:
        task = SimTask(coro, loop=self, name=name, context=context)
        self._tasks.append(task)
        if len(self._tasks) > 64 and not len(self._tasks) & 63:
            self._tasks = [one for one in self._tasks if not one.done()]
        return task

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[_Ts]], _T], *args: *_Ts
    ) -> asyncio.Future[_T]:
        assert isinstance(executor, SimExecutor), "a shell's threads come in by a seam"
        return executor.run(func, args)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A callback raised, or a task that is never awaited did: a defect."""
        if not self.dead:
            error = context.get("exception")
            assert isinstance(error, BaseException), context
            self.scheduler.fail(error)

    get_debug = staticmethod(bool)
    """False. Every future asks for it, and this is no call of Python code."""

    def is_running(self) -> bool:
        return not self.dead

    def is_closed(self) -> bool:
        return False
