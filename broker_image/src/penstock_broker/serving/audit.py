"""The audit log: who changed what, and who was denied.

    changes   one line each, with the outcome
    denials   summed per minute: who, which operation, on what kind of resource, how often

Only for callers that were asked who they are. Names are those of requests, never records or tokens.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from penstock.core.authorization import Kind, Operation
from penstock.errors import PenstockError
from penstock.logs import EventLog
from penstock.proto.v1 import errors_pb2
from penstock_broker.observability import AUDIT

_WINDOW_S: Final = 60.0
_KINDS_MAX: Final = 1_000
"""Different denials in a window; more are counted together."""
_TEXT_MAX: Final = 200
_NAMING: Final = ("topic", "group_id", "transactional_id", "application_id", "broker_id")
_events = EventLog(AUDIT)


class Denials:
    """Counts denials, and logs them a minute after the first."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._scheduled = False

    def note(self, principal: str, operation: Operation, kind: Kind) -> None:
        """One more."""
        key = (principal, operation.value, kind.value)
        if key not in self._counts and len(self._counts) >= _KINDS_MAX:
            key = ("others", "", "")
        self._counts[key] += 1
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_later(_WINDOW_S, self.flush)

    def flush(self) -> None:
        """Logs what was counted."""
        counts, self._counts, self._scheduled = self._counts, Counter(), False
        for (principal, operation, kind), count in counts.items():
            _events.warning(
                "denied", principal=principal, operation=operation, kind=kind, count=count
            )


def log_change(principal: str, method: str, request: Any, answer: Any) -> None:
    """One call that changes something; `answer`: its response, or the error that ended it."""
    _events.info(
        "change",
        principal=principal,
        call=method,
        names=_short(", ".join(_names(request))),
        outcome=_outcome(answer),
    )


def _outcome(answer: Any) -> str:
    """ "ok", or the codes of the errors in the answer."""
    if isinstance(answer, BaseException):
        return answer.code.name if isinstance(answer, PenstockError) else "INTERNAL"
    parts = [answer, *getattr(answer, "results", ())]
    codes = {part.error.code for part in parts if _has_error(part)}
    return ", ".join(sorted(errors_pb2.ErrorCode.Name(code) for code in codes)) or "ok"


def _has_error(part: Any) -> bool:
    return "error" in part.DESCRIPTOR.fields_by_name and part.HasField("error")


def _names(request: Any) -> Iterator[str]:
    """What a request of any method is about."""
    fields = request.DESCRIPTOR.fields_by_name
    for field in _NAMING:
        if field in fields and getattr(request, field):
            yield str(getattr(request, field))
    if "topics" in fields:
        yield from (topic.topic for topic in request.topics)
    if "logs" in fields:
        yield from (f"{log.topic_id}/{log.partition}" for log in request.logs)
    if "resource" in fields:
        which = request.resource.WhichOneof("resource")
        if which is not None:
            yield f"{which} {getattr(request.resource, which)}"


def _short(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else text[:_TEXT_MAX] + "…"
