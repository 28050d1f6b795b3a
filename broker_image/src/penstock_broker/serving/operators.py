"""Which operator asks: its epoch, in the metadata of calls that change something.

    operator ─▶ broker ── the same epoch ─▶ controller: decides only while that epoch counts

Noted once, at the edge, so that no call can forget it; a request waits for others, so the state
machine checks it when it decides (`core.control.fencing`).
"""

from contextvars import ContextVar
from typing import Any, Final

from penstock.errors import ClusterError, ErrorCode
from penstock.rpc.operators import OPERATOR_EPOCH, OPERATOR_EPOCH_MAX
from penstock_broker.serving.calls import BY_METHOD

_EPOCH: Final[ContextVar[int]] = ContextVar("operator_epoch", default=0)


def operator_epoch() -> int:
    """Of the call that is being handled; 0: no operator makes it."""
    return _EPOCH.get()


def note_operator(method: str, context: Any) -> None:
    """Everything from here on in this call is asked for by the operator that its metadata names.

    Raises ClusterError(INVALID_REQUEST) for an epoch that is none.
    """
    known = BY_METHOD.get(method)
    if known is None or not known.changes:
        return
    for key, value in context.invocation_metadata() or ():
        if key == OPERATOR_EPOCH:
            _EPOCH.set(_read(value))


def _read(value: str | bytes) -> int:
    text = value if isinstance(value, str) else ""
    digits = text.isascii() and text.isdecimal() and len(text) <= len(str(OPERATOR_EPOCH_MAX))
    if not digits or int(text) > OPERATOR_EPOCH_MAX:
        raise ClusterError(
            f"metadata {OPERATOR_EPOCH} is {value[:40]!r}; it must be a number from 0 to "
            f"{OPERATOR_EPOCH_MAX}, as AcquireOperatorEpoch gave it",
            ErrorCode.INVALID_REQUEST,
        )
    return int(text)
