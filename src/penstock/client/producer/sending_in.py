"""The transaction in which a thread or task currently sends.

    with SendingIn(number): producer.send(…) ──▶ accumulator: is `number` the one that is open?

So a record of a transaction that has ended is refused, even if the next one is open.
"""

from contextvars import ContextVar, Token
from typing import Final

SENDING_IN: Final[ContextVar[int]] = ContextVar("sending_in", default=0)
"""The transaction's number; 0 = none."""


class SendingIn:
    """Records sent inside belong to the transaction `number`. Use once.

    A class, because a generator would cost each record as much as its append.
    """

    __slots__ = ("_number", "_token")
    _token: Token[int]

    def __init__(self, number: int) -> None:
        self._number = number

    def __enter__(self) -> None:
        self._token = SENDING_IN.set(self._number)

    def __exit__(self, *exc: object) -> None:
        SENDING_IN.reset(self._token)
