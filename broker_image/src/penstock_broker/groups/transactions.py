"""What the groups of a broker ask of the coordinators of transactions, wherever those are.

SendJoin  ─▶ join ──▶ coordinator of the transactional id ──▶ TransactionJoined
SendAbort ─▶ abort, best effort: the member that wrote is gone
"""

from collections.abc import Callable
from typing import Protocol

from penstock.core.groups.contract import SendAbort, SendJoin
from penstock.errors import ClusterError, ErrorCode, PenstockError

Joined = Callable[[PenstockError | None], None]
"""Called once, after the call it was given to has returned; None: the group takes part."""


class TransactionLink(Protocol):
    """See the module. Neither call blocks."""

    def join(self, join: SendJoin, joined: Joined) -> None: ...
    def abort(self, abort: SendAbort) -> None: ...


class NoTransactions:
    """Refuses: this broker has no way to coordinators of transactions."""

    def __init__(self, soon: Callable[[Callable[[], None]], None]) -> None:
        """`soon` calls what it is given at the end of this turn of the loop."""
        self._soon = soon

    def join(self, join: SendJoin, joined: Joined) -> None:
        """The commit is refused; nothing of it is kept."""
        error = ClusterError(
            f"transaction {join.transactional_id!r} cannot take offsets of group "
            f"{join.group_id!r} along: this cluster does not coordinate transactions yet",
            ErrorCode.INVALID_REQUEST,
        )
        self._soon(lambda: joined(error))

    def abort(self, abort: SendAbort) -> None:
        """There is none to abort."""
