"""What the groups of a broker request from transaction coordinators, on any broker.

SendJoin  ─▶ join ──▶ coordinator of the transactional id ──▶ TransactionJoined
SendAbort ─▶ abort, best effort: the member that wrote has left
"""

from collections.abc import Callable
from typing import Protocol

from penstock.core.groups.contract import SendAbort, SendJoin
from penstock.errors import PenstockError

Joined = Callable[[PenstockError | None], None]
"""Called once, after the call that received it has returned; None: the group has joined."""


class TransactionLink(Protocol):
    """See the module. Neither call blocks."""

    def join(self, join: SendJoin, joined: Joined) -> None: ...
    def abort(self, abort: SendAbort) -> None: ...
