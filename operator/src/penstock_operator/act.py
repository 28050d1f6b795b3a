"""Performs one action of a plan. Each is safe to repeat, and names the exact object it applies to.

Actions that could hit the wrong object if they come late carry a uid, and the API server refuses
them then. Before a broker's pod is deleted, its identity is checked once more: the brokers that
answered must belong to this Cluster, and the pod must be the one that was planned (I26).
"""

from time import monotonic
from typing import Final, assert_never
from uuid import uuid4

from penstock.certificates import new_authority
from penstock.core.manifest.upkeep import rate_text
from penstock.errors import PenstockError
from penstock.kubernetes.errors import KubernetesError
from penstock.logs import EventLog
from penstock_operator.brokers import Brokers
from penstock_operator.compare import as_decided, outcome
from penstock_operator.events import Events
from penstock_operator.format_model import FinalizeFormat
from penstock_operator.hibernation_model import Hibernate
from penstock_operator.kube import Kube
from penstock_operator.model import (
    Action,
    AnswerRequest,
    Apply,
    CordonBrokers,
    ForgetBroker,
    GrowClaim,
    MakeAuthority,
    MarkRack,
    MoveLeaders,
    MoveReplicas,
    Object,
    Observed,
    OrphanSet,
    RemoveObject,
    RestartPod,
)
from penstock_operator.move_model import MarkSpread, SetThrottle
from penstock_operator.names import RACK, WOKEN
from penstock_operator.objects import DesiredCluster
from penstock_operator.objects.security import authority_owner, authority_secret
from penstock_operator.overruled import Overrulings
from penstock_operator.volume_acts import VolumeActs
from penstock_operator.volume_model import DropClaim, MarkClaim, OwnClaim, ReplaceVolume

_AUTHORITY_AGAIN_S: Final = 60.0
"""Until the controllers publish it, which may take as long as to pull an image."""
_log = EventLog("penstock_operator.act")

_Told = (
    MoveLeaders
    | ForgetBroker
    | CordonBrokers
    | MoveReplicas
    | MarkSpread
    | Hibernate
    | SetThrottle
    | FinalizeFormat
)


class Acting:
    """Performs a worker's actions."""

    def __init__(self, kube: Kube, brokers: Brokers, events: Events) -> None:
        self._kube, self._brokers, self._events = kube, brokers, events
        self._volumes = VolumeActs(kube, brokers, events)
        self._authority_s: dict[str, float] = {}
        """When there certainly was each CA, by our clock."""
        self.overrulings = Overrulings()

    async def carry_out(
        self, action: Action, body: Object, desired: DesiredCluster, observed: Observed
    ) -> None:
        """Raises KubernetesError. Refusals by brokers are logged; the next plan sees them."""
        namespace = desired.names.namespace
        match action:
            case Apply():
                await self._apply(action, body, observed)
            case MakeAuthority():
                await self._make_authority(action, body, desired)
            case GrowClaim() | ReplaceVolume() | DropClaim() | MarkClaim() | OwnClaim():
                await self._volumes.carry_out(action, body, desired, observed)
            case OrphanSet():
                note = (
                    f"StatefulSet {action.name} is re-created without deleting its pods: "
                    f"{action.reason}"
                )
                await self._events.tell(body, "Cluster", "StatefulSetReplaced", note)
                where = ("StatefulSet", namespace, action.name, action.uid)
                await self._kube.delete(*where, orphan=True)
            case MarkRack():
                mark: Object = {"metadata": {"annotations": {RACK: action.rack}}}
                await self._kube.merge("Pod", namespace, action.pod, mark)
            case RestartPod():
                await self._restart(action, body, namespace)
            case AnswerRequest():
                await self._answer(action, body)
            case (
                MoveLeaders()
                | ForgetBroker()
                | CordonBrokers()
                | MoveReplicas()
                | MarkSpread()
                | Hibernate()
                | SetThrottle()
                | FinalizeFormat()
            ):
                await self._tell_brokers(action, body, desired)
            case RemoveObject():
                await self._remove(action, namespace)
            case _:
                assert_never(action)

    async def _apply(self, action: Apply, body: Object, observed: Observed) -> None:
        kind, name = action.object["kind"], action.object["metadata"]["name"]
        live = observed.live(kind, name)
        wanted = as_decided(action.object, live)
        try:
            answer = await self._kube.apply(wanted)
        except KubernetesError as error:
            if wanted is action.object or not error.is_conflict:
                raise
            _log.warning("has changed since it was decided on: read again", kind=kind, name=name)
            return
        _log.info("applied", kind=kind, name=name, new=live is None)
        found = outcome(action.object, answer)
        self.overrulings.note((kind, name), found)
        if found.differences:
            note = (
                f"{kind} {name} was changed as it was applied, by a webhook perhaps: "
                f"{found.in_words}; it stays so, and is applied again in ten minutes"
            )
            await self._events.tell(body, "Cluster", "ChangedByOthers", note, warning=True)
        if kind == "StatefulSet":
            brokers = action.object["spec"]["replicas"]
            if live is None:
                note = f"starting {brokers} brokers"
                await self._events.tell(body, "Cluster", "Created", note)
            elif live["spec"].get("replicas") != brokers:
                note = f"scaling from {live['spec'].get('replicas')} to {brokers} brokers"
                await self._events.tell(body, "Cluster", "Scaled", note)

    async def _remove(self, action: RemoveObject, namespace: str) -> None:
        if await self._kube.delete(action.kind, namespace, action.name, action.uid):
            _log.info("removed", kind=action.kind, name=action.name)

    async def _make_authority(
        self, action: MakeAuthority, body: Object, desired: DesiredCluster
    ) -> None:
        made_s = self._authority_s.get(action.secret)
        if made_s is not None and monotonic() - made_s < _AUTHORITY_AGAIN_S:
            return
        namespace, owner = desired.names.namespace, action.owner
        try:
            if owner is None:
                wanted = authority_owner(desired, action.secret)
                owner = await self._kube.create("ConfigMap", namespace, wanted)
        except KubernetesError as error:
            if not error.is_conflict:
                raise
            return  # another operator was first: the next pass sees it
        certificate, key = new_authority(desired.names.cluster)
        secret = authority_secret(desired, owner, certificate, key)
        try:
            await self._kube.create("Secret", namespace, secret)
        except KubernetesError as error:
            if not error.is_conflict:
                raise
        else:
            _log.info("made a CA", secret=action.secret)
            note = f"made a CA for the cluster, in Secret {action.secret}"
            await self._events.tell(body, "Cluster", "AuthorityMade", note)
        self._authority_s[action.secret] = monotonic()

    async def _tell_brokers(self, action: _Told, body: Object, desired: DesiredCluster) -> None:
        if action == Hibernate(hibernating=False) and not await self._keeps_running(desired):
            return
        try:
            await self._ask(action, body, desired)
        except PenstockError as error:
            step = type(action).__name__
            _log.warning("refused by the brokers", step=step, error=error.message)

    async def _ask(self, action: _Told, body: Object, desired: DesiredCluster) -> None:
        """Raises PenstockError."""
        match action:
            case MoveLeaders():
                await self._brokers.move_leaders(desired, action.broker_id)
            case ForgetBroker():
                admin = await self._brokers.admin(desired)
                where = action.directory_id
                await admin.unregister_broker(action.broker_id, directory_id=where)
            case CordonBrokers():
                await (await self._brokers.admin(desired)).alter_brokers(action.changes)
                await self._events.tell(body, "Cluster", "Draining", action.note)
            case MoveReplicas():
                await self._move_replicas(action, body, desired)
            case MarkSpread():
                await (await self._brokers.admin(desired)).alter_brokers(action.changes)
            case Hibernate():
                admin = await self._brokers.admin(desired)
                await admin.alter_cluster(hibernating=action.hibernating)
            case SetThrottle():
                admin = await self._brokers.admin(desired)
                await admin.alter_throttle(action.copy_rate, by=action.by)
                note = f"copy rate of each broker: {rate_text(action.copy_rate)}"
                await self._events.tell(body, "Cluster", "ThrottleChanged", note)
            case FinalizeFormat():
                await self._finalize(action, body, desired)
            case _:
                assert_never(action)

    async def _finalize(
        self, action: FinalizeFormat, body: Object, desired: DesiredCluster
    ) -> None:
        try:
            change = await (await self._brokers.admin(desired)).finalize(action.to)
        except PenstockError as error:
            note = f"format {action.to} is not stored yet: {error.message}"
            await self._events.tell(body, "Cluster", "FinalizeRefused", note, warning=True)
            raise
        note = (
            f"the stored metadata has format {change.after}: the release before can no longer be "
            "started"
        )
        await self._events.tell(body, "Cluster", "Finalized", note)

    async def _keeps_running(self, desired: DesiredCluster) -> bool:
        """Whether the brokers run, and nobody stops them any more by what was seen before: each
        such write names a version of the StatefulSet, which is another one from here on."""
        where = ("StatefulSet", desired.names.namespace, desired.names.broker)
        woken: Object = {"metadata": {"annotations": {WOKEN: uuid4().hex}}}
        found = await self._kube.merge(*where, woken)
        if found["spec"].get("replicas", 1) != 0:
            return True
        _log.warning("not woken: its brokers stop", cluster=desired.names.cluster)
        return False

    async def _move_replicas(
        self, action: MoveReplicas, body: Object, desired: DesiredCluster
    ) -> None:
        admin = await self._brokers.admin(desired)
        outcomes = await admin.alter_replicas(action.moves, reason=action.reason)
        refused = [one.error.message for one in outcomes if one.error is not None]
        if refused:
            _log.warning("moves refused", refused=len(refused), first=refused[0])
        _log.info("moves of replicas altered", moves=len(outcomes) - len(refused))
        if action.note and len(refused) < len(outcomes):
            await self._events.tell(body, "Cluster", "Spreading", action.note)

    async def _restart(self, action: RestartPod, body: Object, namespace: str) -> None:
        if await self._kube.delete("Pod", namespace, action.pod, action.uid):
            note = f"restarting broker {action.broker_id}: {action.reason}"
            await self._events.tell(body, "Cluster", "BrokerRestarts", note)

    async def _answer(self, action: AnswerRequest, body: Object) -> None:
        metadata = body["metadata"]
        version, text = metadata["resourceVersion"], {action.annotation: action.text}
        changed: Object = {"metadata": {"resourceVersion": version, "annotations": text}}
        try:
            await self._kube.merge("Cluster", metadata["namespace"], metadata["name"], changed)
        except KubernetesError as error:
            if not error.is_conflict:
                raise
            _log.info("changed before it was answered: read again", request=action.annotation)
            return
        if action.note:
            await self._events.tell(body, "Cluster", action.reason, action.note, warning=True)
