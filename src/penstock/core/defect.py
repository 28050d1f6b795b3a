"""A defect in a machine stops it: half of an event may be done, and continuing would be a guess.

    handle(event) ─▶ rules ─▶ Ready
                       └─ any exception ─▶ Ready(stopped=error, pending answers)
    handle(event), stopped ─▶ the answer to this event: the same error

Every machine does it in the same way. Decisions of a half-handled event are dropped entirely: none
of them is sent, and the shell's view of the machine stays as before the event. All waiting callers
get `error`; `Unanswered` knows them, because the rules that would know are broken. `Ready.stopped`
is set once: the shell logs the defect behind it (`__cause__`, with its traceback), ends its own
work for the machine, and the rest of the process continues. A stopped machine is not used again:
another one reads its state again, from disk or log.
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
    """Requests that a machine accepted and has not answered yet, by their ids."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: set[int] = set()

    def __len__(self) -> int:
        return len(self._ids)

    def take(self, request_id: int) -> None:
        """A request arrived; called before it is handled."""
        self._ids.add(request_id)

    def settle(self, replies: Iterable[Answered]) -> None:
        """These replies are sent with the Ready of an event that was handled completely."""
        for reply in replies:
            self._ids.discard(reply.request_id)

    def give_up(self) -> list[int]:
        """All callers that still wait, oldest id first; forgets them."""
        ids, self._ids = sorted(self._ids), set()
        return ids


def stopped_by(defect: Exception, what: str, event: object, code: ErrorCode) -> ClusterError:
    """The error that says why `what` is stopped; `defect` is its `__cause__`.

    `event`: what it was handling, an event or a word for it.
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
    """Raises the defect behind `Ready.stopped`, for tests and the simulator.

    Ignores None, and a stop that a rule decided.
    """
    if stopped is not None and stopped.__cause__ is not None:
        raise stopped.__cause__
