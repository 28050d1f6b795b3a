"""Performs what a plan decides about volumes; the rest is in `act`."""

from dataclasses import replace
from typing import assert_never

from penstock.kubernetes.names import CLUSTER_LABEL
from penstock.logs import EventLog
from penstock_operator.brokers import Brokers
from penstock_operator.events import Events
from penstock_operator.kube import Kube
from penstock_operator.model import GrowClaim, Object, Observed, PodState
from penstock_operator.names import EMPTIED, REPLACE_VOLUME, Names
from penstock_operator.objects import DesiredCluster
from penstock_operator.observe import pod_state
from penstock_operator.plan.scale import forgotten
from penstock_operator.plan.volumes import EXPIRED, REPLACING, is_still_due
from penstock_operator.volume_model import AnswerReplacement, DropClaim, MarkClaim, ReplaceVolume

_log = EventLog("penstock_operator.volume_acts")


class VolumeActs:
    """Of one Cluster."""

    def __init__(self, kube: Kube, brokers: Brokers, events: Events) -> None:
        self._kube, self._brokers, self._events = kube, brokers, events

    async def carry_out(
        self,
        action: GrowClaim | ReplaceVolume | DropClaim | MarkClaim | AnswerReplacement,
        body: Object,
        desired: DesiredCluster,
        observed: Observed,
    ) -> None:
        """Raises KubernetesError."""
        match action:
            case GrowClaim():
                await self._grow(action, body, desired.names.namespace)
            case ReplaceVolume():
                await self._replace(action, body, desired, observed)
            case DropClaim():
                await self._drop(action, body, desired, observed)
            case MarkClaim():
                mark: Object = {EMPTIED: action.claim_uid if action.emptied else None}
                marked: Object = {"metadata": {"uid": action.claim_uid, "annotations": mark}}
                where = ("PersistentVolumeClaim", desired.names.namespace, action.claim)
                await self._kube.merge(*where, marked)
            case AnswerReplacement():
                await self._answer(action, body, desired.names.namespace)
                if action.note:
                    await self._events.tell(body, "Cluster", EXPIRED, action.note, warning=True)
            case _:
                assert_never(action)

    async def _grow(self, action: GrowClaim, body: Object, namespace: str) -> None:
        size: Object = {"spec": {"resources": {"requests": {"storage": action.size}}}}
        await self._kube.merge("PersistentVolumeClaim", namespace, action.claim, size)
        note = f"growing volume {action.claim} to {action.size}"
        await self._events.tell(body, "Cluster", "VolumeGrows", note)

    async def _replace(
        self, action: ReplaceVolume, body: Object, desired: DesiredCluster, observed: Observed
    ) -> None:
        """The claim first: with the pod alone gone, the next one would use the same volume.

        A deleted volume does not come back, and this process may have been frozen since it has
        decided: so the brokers are asked once more, and its pod is looked at. A node that came back
        has taken it, whether the broker answers at this moment or not.
        """
        facts, moves = await self._brokers.replicas(desired)
        pod = await self._pod(action.broker_id, desired.names)
        seen = _with_pod(observed, action.broker_id, pod)
        now = replace(seen, brokers=facts, moves=moves)
        if not is_still_due(action, desired, now):
            _log.warning("volume not replaced: no longer due", broker=action.broker_id)
            return
        namespace = desired.names.namespace
        note = (
            f"broker {action.broker_id} gets a new volume in place of {action.claim}: {action.why}"
        )
        await self._events.tell(body, "Cluster", REPLACING, note, warning=True)
        where = ("PersistentVolumeClaim", namespace, action.claim, action.claim_uid)
        if await self._kube.delete(*where) and action.pod:
            await self._kube.delete("Pod", namespace, action.pod, action.pod_uid)

    async def _drop(
        self, action: DropClaim, body: Object, desired: DesiredCluster, observed: Observed
    ) -> None:
        """As in `_replace`, the brokers are asked once more, and for its pod. Whoever lets the
        broker come back takes the mark off the claim first, which then has another version."""
        facts, moves = await self._brokers.replicas(desired)
        pod = await self._pod(action.broker_id, desired.names)
        now = replace(_with_pod(observed, action.broker_id, pod), brokers=facts, moves=moves)
        live = now.live("StatefulSet", desired.names.broker)
        if live is None or action not in forgotten(desired, now, live):
            _log.warning("claim not deleted: no longer due", broker=action.broker_id)
            return
        where = ("PersistentVolumeClaim", desired.names.namespace, action.claim, action.claim_uid)
        if await self._kube.delete(*where, version=action.version):
            what = f"claim {action.claim} of broker {action.broker_id}, which was emptied,"
            await self._events.tell(body, "Cluster", "VolumeDeleted", f"{what} is deleted")

    async def _pod(self, broker_id: int, names: Names) -> PodState | None:
        """As it is now. Pods may be listed, and not read one by one."""
        selector = f"{CLUSTER_LABEL}={names.cluster}"
        found = await self._kube.list("Pod", names.namespace, selector)
        named = (one for one in found if one["metadata"]["name"] == names.pod(broker_id))
        return next(map(pod_state, named), None)

    async def _answer(self, action: AnswerReplacement, body: Object, namespace: str) -> None:
        """Only if the Cluster is as it was when this was decided: it may ask for another one."""
        metadata = body["metadata"]
        changed: Object = {
            "resourceVersion": metadata["resourceVersion"],
            "annotations": {REPLACE_VOLUME: action.text},
        }
        await self._kube.merge("Cluster", namespace, metadata["name"], {"metadata": changed})


def _with_pod(observed: Observed, broker_id: int, pod: PodState | None) -> Observed:
    """What was seen, with this broker's pod as it is now. Its volume's node counts only while no
    node can take the pod."""
    pods = {at: one for at, one in observed.pods.items() if at != broker_id}
    if pod is not None:
        pods[broker_id] = pod
    if pod is not None and pod.unschedulable:
        return replace(observed, pods=pods)
    volumes = {at: one for at, one in observed.volumes.items() if at != broker_id}
    return replace(observed, pods=pods, volumes=volumes)
