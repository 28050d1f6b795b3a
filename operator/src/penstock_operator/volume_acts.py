"""Performs what a plan decides about volumes; the rest is in `act`."""

from dataclasses import replace
from typing import assert_never

from penstock.kubernetes.errors import KubernetesError
from penstock.logs import EventLog
from penstock_operator.brokers import Brokers
from penstock_operator.events import Events
from penstock_operator.kube import Kube
from penstock_operator.model import GrowClaim, Object, Observed
from penstock_operator.names import EMPTIED
from penstock_operator.objects import DesiredCluster
from penstock_operator.plan.scale import forgotten
from penstock_operator.plan.volumes import REPLACING, is_still_due
from penstock_operator.second_look import pods_now
from penstock_operator.volume_model import (
    DropClaim,
    MarkClaim,
    NodeState,
    OwnClaim,
    ReplaceVolume,
)
from penstock_operator.volumes import look

_log = EventLog("penstock_operator.volume_acts")


class VolumeActs:
    """Of one Cluster."""

    def __init__(self, kube: Kube, brokers: Brokers, events: Events) -> None:
        self._kube, self._brokers, self._events = kube, brokers, events

    async def carry_out(
        self,
        action: GrowClaim | ReplaceVolume | DropClaim | MarkClaim | OwnClaim,
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
            case OwnClaim():
                await self._own(action, desired.names.namespace)
            case _:
                assert_never(action)

    async def _grow(self, action: GrowClaim, body: Object, namespace: str) -> None:
        size: Object = {"spec": {"resources": {"requests": {"storage": action.size}}}}
        await self._kube.merge("PersistentVolumeClaim", namespace, action.claim, size)
        note = f"growing volume {action.claim} to {action.size}"
        await self._events.tell(body, "Cluster", "VolumeGrows", note)

    async def _own(self, action: OwnClaim, namespace: str) -> None:
        owned: Object = {
            "uid": action.claim_uid,
            "resourceVersion": action.version,
            "ownerReferences": list(action.owners),
        }
        where = ("PersistentVolumeClaim", namespace, action.claim)
        try:
            await self._kube.merge(*where, {"metadata": owned})
        except KubernetesError as error:
            if not (error.is_conflict or error.is_missing):
                raise
            _log.info("changed before its owner was written: read again", claim=action.claim)
            return
        owners = [each["kind"] for each in action.owners]
        _log.info("owners of a claim written", claim=action.claim, owners=owners)

    async def _replace(
        self, action: ReplaceVolume, body: Object, desired: DesiredCluster, observed: Observed
    ) -> None:
        """The claim first: with the pod alone gone, the next one would use the same volume.

        A deleted volume does not come back, and this process may have been frozen since it has
        decided: so the brokers are asked once more, and its pod and its node are looked at. A node
        that came back has the volume, before it has taken the pod and the broker answers.
        """
        now = await self._look_again(action.broker_id, desired, observed)
        if not is_still_due(action, desired, now):
            _log.warning("volume not replaced: no longer due", broker=action.broker_id)
            return
        namespace = desired.names.namespace
        note = (
            f"broker {action.broker_id} gets a new volume in place of {action.claim}: {action.why}"
        )
        _log.warning("volume is replaced", note=note)
        where = ("PersistentVolumeClaim", namespace, action.claim, action.claim_uid)
        if await self._kube.delete(*where):
            if action.pod:
                await self._kube.delete("Pod", namespace, action.pod, action.pod_uid)
            await self._events.tell(body, "Cluster", REPLACING, note, warning=True)

    async def _drop(
        self, action: DropClaim, body: Object, desired: DesiredCluster, observed: Observed
    ) -> None:
        """As in `_replace`, the brokers are asked once more, and for its pod. Whoever lets the
        broker come back takes the mark off the claim first, which then has another version."""
        now = await self._look_again(action.broker_id, desired, observed)
        live = now.live("StatefulSet", desired.names.broker)
        if live is None or action not in forgotten(desired, now, live):
            _log.warning("claim not deleted: no longer due", broker=action.broker_id)
            return
        where = ("PersistentVolumeClaim", desired.names.namespace, action.claim, action.claim_uid)
        if await self._kube.delete(*where, version=action.version):
            what = f"claim {action.claim} of broker {action.broker_id}, which was emptied,"
            await self._events.tell(body, "Cluster", "VolumeDeleted", f"{what} is deleted")

    async def _look_again(
        self, broker_id: int, desired: DesiredCluster, observed: Observed
    ) -> Observed:
        """What was seen, with the brokers' answers, this broker's pod and its volume's node as they
        are now. The node counts only while no node can take the pod."""
        facts, moves = await self._brokers.replicas(desired)
        pod = (await pods_now(self._kube, desired.names)).get(broker_id)
        pods = {at: one for at, one in observed.pods.items() if at != broker_id}
        volumes = {at: one for at, one in observed.volumes.items() if at != broker_id}
        if pod is not None:
            pods[broker_id] = pod
        before, claim = observed.volumes.get(broker_id), observed.claims.get(broker_id)
        if before and claim and pod is not None and pod.unschedulable:
            found = await look(self._kube, claim)
            if found is not None:
                is_still_gone = found == replace(before, state=NodeState.GONE)
                volumes[broker_id] = before if is_still_gone else found
        return replace(observed, brokers=facts, moves=moves, pods=pods, volumes=volumes)
