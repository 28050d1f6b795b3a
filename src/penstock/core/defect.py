"""A defect in a machine stops it: half of an event may be done, and the rest would be guessed.

    handle(event) ─▶ rules ─▶ Ready
                       └─ any exception ─▶ Ready(stopped=error, answers that are owed)
    handle(event), stopped ─▶ the answer that is owed to this event: the same error

Every machine does it in the same way. What a half-handled event had decided is dropped whole:
nothing of it leaves, and what the shell may look at stays as it was before the event. Whoever
waits for an answer gets `error`; `Unanswered` knows them, because the rules that would know are
what broke. `Ready.stopped` is set once: the shell logs the defect behind it (`__cause__`, with its
traceback), ends what it does for the machine by itself, and the rest of the process goes on.
Nobody goes on with a stopped machine: its state is read anew, from disk or log, by another.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from penstock.errors import ClusterError, ErrorCode, PenstockError


class Answered(Protocol):
    """The answer to one request."""

    @property
    def request_id(self) -> int: ...


class Unanswered:
    """Requests that a machine took and has not answered yet, by their ids."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: set[int] = set()

    def __len__(self) -> int:
        return len(self._ids)

    def take(self, request_id: int) -> None:
        """A request came; before anything of it is looked at."""
        self._ids.add(request_id)

    def settle(self, replies: Iterable[Answered]) -> None:
        """These leave with the Ready of an event that was handled to its end."""
        for reply in replies:
            self._ids.discard(reply.request_id)

    def give_up(self) -> list[int]:
        """Everyone who still waits, oldest id first; nobody does from now on."""
        ids, self._ids = sorted(self._ids), set()
        return ids


def stopped_by(defect: Exception, what: str, event: object, code: ErrorCode) -> ClusterError:
    """Why `what` is stopped, to be told to everyone who asks; `defect` is its `__cause__`.

    `event`: what it was doing, an event or a word for it.
    """
    doing = event if isinstance(event, str) else type(event).__name__
    error = ClusterError(
        f"{what} stopped because of a defect ({type(defect).__name__}) while it handled {doing}: "
        "the outcome of pending requests is unknown; see the log of this process, and restart it",
        code,
    )
    error.__cause__ = defect
    return error


def raise_defect(stopped: PenstockError | None) -> None:
    """Raises the defect behind `Ready.stopped`; for tests and the simulator: they want to see it.

    None, and a stop that a rule decided, pass.
    """
    if stopped is not None and stopped.__cause__ is not None:
        raise stopped.__cause__
