"""Why brokers' pods cannot be created, in the words of the API server: a quota, a webhook.

A Deployment has a condition for this; a StatefulSet only tells it in Events. So they are read, but
only while a pod is missing for longer than it takes to make one.
"""

from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Final

from penstock.kubernetes.errors import KubernetesError
from penstock.logs import EventLog
from penstock_operator.kube import Kube
from penstock_operator.model import Object
from penstock_operator.names import Names

MISSING_S: Final = 30.0
"""Until then a pod is being created, or was refused for a moment."""
LOOK_S: Final = 10.0
"""Between two looks: a quota may stay for days, and a pass comes every second then."""
_FAILED: Final = frozenset({"FailedCreate"})
_OVER: Final = frozenset({"SuccessfulCreate"})
_log = EventLog("penstock_operator.refusals")


class Refusals:
    """Since when each pod is missing. `now_s`: a clock that never goes back."""

    def __init__(self, kube: Kube, now_s: Callable[[], float] = monotonic) -> None:
        self._kube, self._now_s = kube, now_s
        self._since: dict[int, float] = {}
        self._looked_s: float | None = None
        self._events: list[Object] = []

    async def read(self, names: Names, missing: Iterable[int]) -> Mapping[int, str]:
        """Why, by broker, of those `missing` whose pods were refused when that was tried last.

        Does not raise KubernetesError: what is not known is not said.
        """
        now_s = self._now_s()
        self._since = {each: self._since.get(each, now_s) for each in missing}
        late = [each for each, since_s in self._since.items() if now_s - since_s >= MISSING_S]
        if not late:
            self._looked_s, self._events = None, []
            return {}
        if self._looked_s is None or now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            await self._look(names)
        found = {each: last_refusal(self._events, names.pod(each)) for each in late}
        return {each: why for each, why in found.items() if why}

    async def _look(self, names: Names) -> None:
        try:
            self._events = await self._kube.events(names.namespace, "StatefulSet", names.broker)
        except KubernetesError as error:
            _log.warning("events not read", cluster=names.cluster, error=error.message)


def last_refusal(events: Iterable[Object], pod: str) -> str:
    """Of a StatefulSet's Events: why a pod, or its claim, was not created; empty: it was."""
    about = (each for each in events if f" Pod {pod} in " in each.get("note", ""))
    note = last_note(about, _FAILED, _OVER)
    return note.partition("failed error: ")[2] or note


def last_note(events: Iterable[Object], failed: frozenset[str], over: frozenset[str]) -> str:
    """Of the last Event with a reason in `failed`; empty if there is none, or one in `over` came
    later."""
    about = [each for each in events if each.get("reason") in failed | over]
    last = max(about, key=lambda each: (_time(each), each["reason"] in failed), default=None)
    return "" if last is None or last["reason"] in over else str(last.get("note", ""))


def _time(event: Object) -> str:
    """When it happened last, RFC 3339 to the second: all are of one controller's clock."""
    series: Mapping[str, str] = event.get("series") or {}
    found = (
        series.get("lastObservedTime")
        or event.get("deprecatedLastTimestamp")
        or event.get("eventTime")
        or event["metadata"].get("creationTimestamp")
        or ""
    )
    return str(found)[:19]
