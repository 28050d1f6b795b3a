"""Reports a pass: the status of the Cluster, Events for what is new in it, metrics.

An Event tells of a change: it compares the status that is about to be written with the live one.
What the status says is decided in `status`, when it is written in `pace`.
"""

from collections.abc import Mapping
from typing import Any, Final

from penstock.core.manifest.upkeep import BalanceMode
from penstock.kubernetes.names import APPROVE, PAUSED
from penstock_operator.clock import now_text
from penstock_operator.conditions import READY, STALLED, condition
from penstock_operator.events import Events
from penstock_operator.format_model import FORMAT_PENDING
from penstock_operator.hibernation_model import Stage
from penstock_operator.kube import Kube
from penstock_operator.metrics import Metrics
from penstock_operator.model import Object, Observed, Plan, Severity
from penstock_operator.names import Names
from penstock_operator.objects import DesiredCluster
from penstock_operator.outdated import tell_dropped
from penstock_operator.pace import Due, Pace
from penstock_operator.status import cluster_status

OPERATOR_ERROR: Final = "OperatorError"
"""Reason of Stalled: the last pass of the operator ended in a defect."""
_DEFECT_CHARS: Final = 300


class Reporting:
    """Of one Cluster."""

    def __init__(self, kube: Kube, events: Events, metrics: Metrics) -> None:
        self._kube = kube
        self._events = events
        self._metrics = metrics
        self._pace = Pace()

    async def report(
        self, body: Object, desired: DesiredCluster, observed: Observed, plan: Plan
    ) -> bool:
        """Whether the status says everything; else it is written later."""
        before: Mapping[str, Any] = body.get("status") or {}
        status = cluster_status(desired, observed, plan, before, now_text())
        blocked = [wait for wait in plan.waits if wait.severity is Severity.BLOCKED]
        for wait in blocked:
            await self._events.tell(body, "Cluster", wait.reason, wait.message, warning=True)
        offered = status["upgrade"]
        if offered["plan"] and offered["plan"] != (before.get("upgrade") or {}).get("plan"):
            await self._events.tell(body, "Cluster", "UpgradeAvailable", _offer(offered))
        if _pending(status) and not _pending(before):
            await self._events.tell(body, "Cluster", FORMAT_PENDING, _pending(status))
        spread = status.get("plan") or {}
        if spread.get("id") and spread["id"] != (before.get("plan") or {}).get("id"):
            await self._events.tell(body, "Cluster", "PlanReady", _spread(spread, desired))
        if plan.resting is not None and _stage(status) != _stage(before):
            wait = plan.resting
            await self._events.tell(body, "Cluster", wait.reason, wait.message)
        was_ready = _is_ready(before)
        told = await self._write(body, desired.names, status, before)
        if _is_ready(status) and not was_ready:
            await self._events.tell(body, "Cluster", "Ready", "all brokers are serving")
        self._metrics.cluster(
            desired.names.namespace,
            desired.names.cluster,
            ready=_is_ready(status),
            paused=desired.paused,
            hibernated=_stage(status) == Stage.HIBERNATED.value,
            stalled=frozenset(wait.reason for wait in blocked),
        )
        return told

    async def report_defect(self, body: Object, defect: BaseException) -> None:
        """A pass ended in a defect of ours. Said once, until one does not. The brokers may serve as
        before: Ready stays, if it is known. Raises KubernetesError."""
        metadata, before = body["metadata"], body.get("status") or {}
        known = {each["type"]: each for each in before.get("conditions") or ()}
        if known.get(STALLED, {}).get("reason") != OPERATOR_ERROR:
            await self._say_defect(body, known, defect)
        paused = (metadata.get("annotations") or {}).get(PAUSED) == "true"
        self._metrics.cluster(
            metadata["namespace"],
            metadata["name"],
            ready=known[READY]["status"] == "True",
            paused=paused,
            hibernated=_stage(before) == Stage.HIBERNATED.value,
            stalled=frozenset({OPERATOR_ERROR}),
        )

    async def _say_defect(
        self, body: Object, known: dict[str, Object], defect: BaseException
    ) -> None:
        """`known`: the conditions by type, which are changed here, too."""
        metadata = body["metadata"]
        first = (str(defect).splitlines() or [""])[0][:_DEFECT_CHARS]
        text = (
            f"the operator has a defect: {type(defect).__name__}: {first}; brokers serve without "
            "it, and it tries again and again; its log has the traceback: please report it"
        )
        now, generation = now_text(), metadata.get("generation", 1)
        for kind, value in ((READY, "False"), (STALLED, "True")):
            if kind is STALLED or kind not in known:
                row = (kind, value, OPERATOR_ERROR, text)
                known[kind] = condition(row, generation, known.get(kind), now)
        status = {"conditions": list(known.values()), "message": text}
        namespace, name = metadata["namespace"], metadata["name"]
        await self._kube.merge("Cluster", namespace, name, {"status": status}, status=True)
        await self._events.tell(body, "Cluster", OPERATOR_ERROR, text, warning=True)

    async def _write(
        self, body: Object, names: Names, status: Object, before: Mapping[str, Any]
    ) -> bool:
        """Writes nothing if nothing has changed: a Cluster at rest costs no writes."""
        uid = body["metadata"]["uid"]
        due = self._pace.due(uid, before, status)
        if due is Due.NOW:
            answer = await self._kube.merge(
                "Cluster", names.namespace, names.cluster, {"status": status}, status=True
            )
            self._pace.wrote(uid, status, answer.get("status") or {})
            await tell_dropped(self._events, body, "Cluster", status, answer)
        return due is not Due.LATER


def _offer(upgrade: Object) -> str:
    image = f"image {upgrade['to']}" if upgrade["from"] != upgrade["to"] else "another template"
    return f"plan {upgrade['plan']} brings {image}; nothing restarts before it is approved"


def _spread(plan: Object, desired: DesiredCluster) -> str:
    if desired.spec.balance_mode is BalanceMode.ON_SCALE:
        return f"plan {plan['id']}: {plan['text']}; it begins now"
    return (
        f"plan {plan['id']}: {plan['text']}; nothing moves before `kubectl penstock approve "
        f"{desired.names.cluster}`, or annotation {APPROVE}: {plan['id']}"
    )


def _pending(status: Mapping[str, Any]) -> str:
    """What the condition FormatPending says while it holds; empty: it does not."""
    for each in status.get("conditions") or ():
        if each["type"] == FORMAT_PENDING and each["status"] == "True":
            return str(each["message"])
    return ""


def _stage(status: Mapping[str, Any]) -> str:
    return str((status.get("hibernation") or {}).get("state", ""))


def _is_ready(status: Mapping[str, Any]) -> bool:
    return any(
        each["type"] == READY and each["status"] == "True"
        for each in status.get("conditions") or ()
    )
