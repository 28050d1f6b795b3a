"""Why a pod that has a node is not started there: a volume that is still attached to another one, a
network without addresses. The kubelet tells it only in Events of the pod.

So they are read, but only while a pod waits for longer than an image and a volume usually take.
"""

from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Final

from penstock.kubernetes.errors import KubernetesError
from penstock.logs import EventLog
from penstock_operator.kube import Kube
from penstock_operator.model import Object, PodState
from penstock_operator.refusals import LOOK_S, MISSING_S, last_note

AT_ONCE: Final = 3
"""Pods whose Events are read in one look: all brokers of a big cluster may start together."""
_FAILED: Final = frozenset(
    {"FailedAttachVolume", "FailedMount", "FailedMapVolume", "FailedCreatePodSandBox"}
)
_OVER: Final = frozenset({"SuccessfulAttachVolume", "Pulling", "Pulled", "Created", "Started"})
"""What comes only after all of these."""
_log = EventLog("penstock_operator.stuck")


class Stuck:
    """Since when each pod waits, by its uid. `now_s`: a clock that never goes back."""

    def __init__(self, kube: Kube, now_s: Callable[[], float] = monotonic) -> None:
        self._kube, self._now_s = kube, now_s
        self._since: dict[str, float] = {}
        self._looked_s: float | None = None
        self._found: dict[str, str] = {}

    async def read(self, namespace: str, pods: Iterable[PodState]) -> Mapping[int, str]:
        """Why, by broker, of those that wait, as the kubelet said it last.

        Does not raise KubernetesError: what is not known is not said.
        """
        now_s = self._now_s()
        waiting = [pod for pod in pods if pod.preparing and not pod.terminating]
        self._since = {pod.uid: self._since.get(pod.uid, now_s) for pod in waiting}
        late = [pod for pod in waiting if now_s - self._since[pod.uid] >= MISSING_S]
        if not late:
            self._looked_s, self._found = None, {}
            return {}
        if self._looked_s is None or now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._found = {pod.uid: await self._look(namespace, pod) for pod in late[:AT_ONCE]}
        return {pod.broker_id: why for pod in late if (why := self._found.get(pod.uid))}

    async def _look(self, namespace: str, pod: PodState) -> str:
        try:
            return last_trouble(await self._kube.events(namespace, "Pod", pod.name), pod.uid)
        except KubernetesError as error:
            _log.warning("events not read", pod=pod.name, error=error.message)
            return ""


def last_trouble(events: Iterable[Object], uid: str) -> str:
    """Of the Events of a pod and its predecessors of the same name; empty: there is none."""
    about = (each for each in events if (each.get("regarding") or {}).get("uid") == uid)
    return " ".join(last_note(about, _FAILED, _OVER).split())
