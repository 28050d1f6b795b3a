"""What the groups of a broker ask of the coordinators of transactions, wherever those are.

SendJoin  ─▶ join ──▶ coordinator of the transactional id ──▶ TransactionJoined
SendAbort ─▶ abort, best effort: the member that wrote is gone
"""

from collections.abc import Callable
from typing import Protocol

from penstock.core.groups.contract import SendAbort, SendJoin
from penstock.errors import PenstockError

Joined = Callable[[PenstockError | None], None]
"""Called once, after the call that it was passed to has returned; None: the group has joined."""


class TransactionLink(Protocol):
    """See the module. Neither call blocks."""

    def join(self, join: SendJoin, joined: Joined) -> None: ...
    def abort(self, abort: SendAbort) -> None: ...
