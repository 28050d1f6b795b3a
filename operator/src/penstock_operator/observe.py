"""A snapshot of one Cluster: the state in the API server and the answers of the brokers.

Kubernetes objects are listed again only when something changed (`Children.dirty`), or after five
minutes in case a watch event was lost; the brokers are asked every time. Reads are consistent, so a
plan is never based on a stale cache. A kind that cannot be listed is unknown until it can: what was
read of it before is shown, and nothing is decided from it (I28).
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from penstock.certificates import MADE_BY
from penstock.core.manifest.containers import BROKER, CONTROLLER, container_of
from penstock.core.manifest.objects import SecurityMode
from penstock.kubernetes.certificate_ends import CertificateEnd, current, ends_in
from penstock.kubernetes.errors import KubernetesError
from penstock.kubernetes.names import CLUSTER_LABEL, COMPONENT_LABEL, TRUST_KEY, TRUST_LABEL
from penstock.kubernetes.quantity import quantity
from penstock.kubernetes.rotation import SETTLED, rotation_of
from penstock_operator.brokers import Brokers
from penstock_operator.clock import now_text, seconds_between
from penstock_operator.format_model import FormatSaid
from penstock_operator.hibernation_model import Record
from penstock_operator.kube import Kube
from penstock_operator.model import AuthorityState, Object, Observed, PodState
from penstock_operator.names import RACK, TEMPLATE_HASH, Names
from penstock_operator.objects import (
    DesiredCluster,
    Last,
    broker_objects,
    broker_set,
    controller_objects,
    last_of,
)
from penstock_operator.objects.security import users_ca_problem
from penstock_operator.racks import Racks
from penstock_operator.refusals import Refusals
from penstock_operator.resting import rest_of
from penstock_operator.stored import Stored
from penstock_operator.stuck import Stuck
from penstock_operator.troubles import beside, is_preparing, trouble_of
from penstock_operator.volume_model import BoundNode, ClaimState
from penstock_operator.volumes import Volumes, claim_state

OWNED: Final = (
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "Service",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "Deployment",
    "StatefulSet",
)
LISTED: Final[tuple[str, ...]] = (*OWNED, "Pod", "PersistentVolumeClaim")
TRUST: Final = "ConfigMap"
RELIST_S: Final = 300.0
RETRY_S: Final = 5.0
"""After which a kind that could not be listed is listed again."""
AUTHORITY_AGES_AFTER: Final = 2 / 3
"""Of its life, as for other certificates: of five years, 20 months are left to rotate it."""


class Children:
    """The Kubernetes side of a snapshot, kept until something changes.

    read (all that has the Cluster's label) ─▶ last ─▶ spec ─▶ complete (what it names besides)
    """

    def __init__(self, kube: Kube, now_s: Callable[[], float] = monotonic) -> None:
        """`now_s`: a clock that never goes back, for how long nodes are gone."""
        self._kube = kube
        self._listed_at = self._tried_at = 0.0
        self._lists: dict[str, list[Object]] = {}
        self._unlabelled: dict[tuple[str, str], Object] = {}
        self._unknown: dict[str, str] = {}
        self._is_complete = False
        self._trust: list[Object] = []
        self._volumes = Volumes(kube, now_s)
        self._stored = Stored(kube, now_s)
        self._refusals = Refusals(kube, now_s)
        self._stuck = Stuck(kube, now_s)
        self._racks = Racks(kube, now_s)
        self.dirty = True

    async def read(self, names: Names) -> None:
        """Lists what may have changed. Does not raise KubernetesError: see `unknown`."""
        now = monotonic()
        if self.dirty or now - self._listed_at >= RELIST_S:
            kinds, self._listed_at = LISTED, now
        elif self._unknown and now - self._tried_at >= RETRY_S:
            kinds = tuple(kind for kind in LISTED if kind in self._unknown)
        else:
            return
        self.dirty = False  # set again by any change from here on
        try:
            async with asyncio.TaskGroup() as group:
                for kind in kinds:
                    group.create_task(self._list(kind, names))
        except BaseException:
            self.dirty = True
            raise
        self._tried_at, self._is_complete = monotonic(), False

    async def _list(self, kind: str, names: Names) -> None:
        selector = f"{CLUSTER_LABEL}={names.cluster}"
        try:
            self._lists[kind] = await self._kube.list(kind, names.namespace, selector)
        except KubernetesError as error:
            self._unknown[kind] = error.message
        else:
            self._unknown.pop(kind, None)

    def last(self, names: Names) -> Last:
        """What the Cluster was last made from."""
        objects = self.objects
        made = (("StatefulSet", names.broker), ("Deployment", names.controller))
        return last_of([objects.get(key) for key in made])

    async def complete(self, desired: DesiredCluster) -> None:
        """Reads what only the spec tells. Does not raise KubernetesError."""
        if not self._is_complete:
            self._unlabelled = {}
            for wanted in _wanted(desired, self._brokers(desired)):
                await self._find(wanted["kind"], wanted["metadata"]["name"], desired)
        runs_tls = any(
            pod.mode is None or pod.mode.has_tls for pod in self.pods(desired.names).values()
        )
        changes = desired.has_tls and is_rotating(self.authority(desired))  # nobody watches it
        if not self._is_complete or changes:
            await self._read_trust(desired, needed=desired.has_tls or runs_tls)
        self._is_complete = True

    def _brokers(self, desired: DesiredCluster) -> int:
        """How many there are, or shall be."""
        live = self.objects.get(("StatefulSet", desired.names.broker))
        made = 0 if live is None else int(live["spec"].get("replicas", 1))
        last = max(self.pods(desired.names), default=-1)
        return max(desired.spec.brokers, made, last + 1)

    async def _find(self, kind: str, name: str, desired: DesiredCluster) -> None:
        """An object of others may have one of our names, without our label."""
        if (kind, name) in self.objects or kind in self._unknown:
            return
        try:
            found = await self._kube.get(kind, desired.names.namespace, name)
        except KubernetesError as error:
            self._unknown[kind] = error.message
            return
        if found is not None:
            self._unlabelled[kind, name] = found

    async def _read_trust(self, desired: DesiredCluster, *, needed: bool) -> None:
        if not needed:
            self._trust = []
            return
        of_ours = f"{TRUST_LABEL}={desired.names.cluster}"
        try:
            self._trust = await self._kube.list("ConfigMap", desired.names.namespace, of_ours)
        except KubernetesError as error:
            self._unknown[TRUST] = error.message
        else:
            self._unknown.pop(TRUST, None)

    @property
    def unknown(self) -> Mapping[str, str]:
        """See `Observed`."""
        return self._unknown

    @property
    def objects(self) -> dict[tuple[str, str], Object]:
        """Those with our label or one of our names."""
        labelled = {
            (kind, each["metadata"]["name"]): each
            for kind in OWNED
            for each in self._lists.get(kind, ())
        }
        return self._unlabelled | labelled

    def trust(self, desired: DesiredCluster) -> str:
        """See `Observed`."""
        return (self.trust_data(desired) or {}).get(TRUST_KEY, "")

    def trust_data(self, desired: DesiredCluster) -> Mapping[str, str] | None:
        """What clients mount; empty: the controllers have not made it yet; None: no TLS."""
        if not desired.has_tls and not self._trust:
            return None
        found: Mapping[str, str] = (self._published(desired) or {}).get("data") or {}
        return found

    def certificate_ends(self, desired: DesiredCluster) -> Mapping[str, CertificateEnd]:
        """See `Observed`."""
        published = self._published(desired)
        if published is None:
            return {}
        return current(ends_in(published), datetime.now(UTC).date())

    def _published(self, desired: DesiredCluster) -> Object | None:
        """The ConfigMap that controllers write."""
        named = (one for one in self._trust if one["metadata"]["name"] == desired.names.trust)
        return next(named, None)

    def authority(self, desired: DesiredCluster) -> AuthorityState:
        """See `Observed`."""
        by_name = {each["metadata"]["name"]: each for each in self._trust}
        owners = {name: by_name[name] for name in desired.names.authorities if name in by_name}
        published = self._published(desired)
        rotation = None if published is None else rotation_of(published)
        return AuthorityState(rotation, owners, is_due(self.trust(desired), datetime.now(UTC)))

    def pods(self, names: Names) -> dict[int, PodState]:
        """The brokers' pods."""
        return broker_pods(names, self._pods(BROKER))

    def _pods(self, component: str) -> list[Object]:
        return [pod for pod in self._lists.get("Pod", ()) if _component(pod) == component]

    def controllers_problem(self) -> str:
        """The first controller pod that says why it is not running; see `Observed`."""
        for pod in self._pods(CONTROLLER):
            status = pod.get("status") or {}
            container = container_of(status.get("containerStatuses"), CONTROLLER) or {}
            trouble = trouble_of(status, container) or beside(status, CONTROLLER)[0]
            if trouble and "deletionTimestamp" not in pod["metadata"]:
                return f"pod {pod['metadata']['name']} is not running: {trouble}"
        return ""

    async def refused(self, desired: DesiredCluster) -> Mapping[int, str]:
        """See `Observed`."""
        live = self.objects.get(("StatefulSet", desired.names.broker))
        if live is None or self._unknown.keys() & {"Pod", "StatefulSet"}:
            return {}
        made = range(int(live["spec"].get("replicas", 1)))
        return await self._refusals.read(desired.names, set(made) - self.pods(desired.names).keys())

    async def stuck(self, desired: DesiredCluster) -> Mapping[int, str]:
        """See `Observed`."""
        pods = () if "Pod" in self._unknown else self.pods(desired.names).values()
        return await self._stuck.read(desired.names.namespace, pods)

    async def claims(self, desired: DesiredCluster) -> dict[int, ClaimState]:
        wanted = quantity(desired.spec.storage_size) or 0
        found = {}
        for each in self._lists.get("PersistentVolumeClaim", ()):
            name = each["metadata"]["name"]
            match = re.fullmatch(rf"data-{re.escape(desired.names.broker)}-(\d+)", name)
            if match:
                requested = int(quantity(each["spec"]["resources"]["requests"]["storage"]) or 0)
                grows = requested < wanted and await self._is_expandable(each)
                found[int(match[1])] = claim_state(int(match[1]), each, expandable=grows)
        return found

    async def volumes(
        self, pods: Mapping[int, PodState], claims: Mapping[int, ClaimState]
    ) -> Mapping[int, BoundNode]:
        """See `Observed`. None while it is not known which pods and claims there are."""
        if self._unknown.keys() & {"Pod", "PersistentVolumeClaim"}:
            return {}
        return await self._volumes.read(pods, claims)

    async def stored(self, desired: DesiredCluster, seen: Observed) -> frozenset[int]:
        """See `Observed`. The set of a cluster that sleeps remembers how many there are."""
        live = seen.live("StatefulSet", desired.names.broker)
        sleeps = live is not None and live["spec"].get("replicas", 1) == 0
        last = seen.last_broker(desired.names.broker)
        if sleeps or all(each <= last or claim.emptied for each, claim in seen.claims.items()):
            return frozenset()
        return await self._stored.read(desired.names)

    async def _is_expandable(self, claim: Object) -> bool:
        """Also True when the class cannot be read: the API server will report it."""
        name = claim["spec"].get("storageClassName")
        if not name:
            return True
        try:
            found = await self._kube.get("StorageClass", None, name)
        except KubernetesError:
            return True
        return found is None or bool(found.get("allowVolumeExpansion"))

    async def users_ca_problem(self, desired: DesiredCluster) -> str:
        """See `Observed`. Read each time: nobody tells of changes."""
        given = desired.client_certificates
        if given is None:
            return ""
        try:
            found = await self._kube.get("ConfigMap", desired.names.namespace, given.config_map)
        except KubernetesError:
            return ""  # not known; brokers say themselves what they make of it
        return users_ca_problem(desired, found, self.trust(desired))

    async def racks(self, desired: DesiredCluster) -> dict[str, str]:
        """Rack of each node that has one of our pods, as far as nodes can be read."""
        key = desired.spec.rack_topology_key
        if not key:
            return {}
        return await self._racks.read(key, self.pods(desired.names).values())


def is_rotating(seen: AuthorityState) -> bool:
    """Whether the CA is replaced by another, or is to be."""
    is_moving = seen.rotation is not None and seen.rotation.phase != SETTLED
    return is_moving or len(seen.owners) > 1


def is_due(trust: str, now: datetime) -> bool:
    """Whether the CA (PEM) is ours, and past two thirds of its life. Of two, one is new."""
    try:
        (found,) = x509.load_pem_x509_certificates(trust.encode())
    except ValueError:
        return False
    makers = found.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    begins = found.not_valid_before_utc
    return [each.value for each in makers] == [MADE_BY] and now >= begins + (
        found.not_valid_after_utc - begins
    ) * AUTHORITY_AGES_AFTER


def _wanted(desired: DesiredCluster, brokers: int) -> list[Object]:
    return [
        *controller_objects(desired),
        *broker_objects(desired, brokers),
        broker_set(desired, desired.spec.brokers),
    ]


async def observe(
    children: Children, brokers: Brokers, desired: DesiredCluster, status: Mapping[str, Any]
) -> Observed:
    """The snapshot. Does not raise KubernetesError: what cannot be read is unknown, and brokers
    that do not answer are part of it. `status`: of the Cluster, as it is now."""
    await children.complete(desired)
    brokers.use_trust(children.trust(desired))
    pods = children.pods(desired.names)
    facts, problem, plaintext = None, "no broker is ready yet", None
    record, now = Record.of(status), now_text()
    if any(pod.ready for pod in pods.values()):
        facts, problem = await brokers.ask(desired)
    if facts is not None and desired.ends_plaintext:
        plaintext = await brokers.plaintext(desired)
    claims = await children.claims(desired)
    seen = Observed(
        objects=children.objects,
        pods=pods,
        claims=claims,
        volumes=await children.volumes(pods, claims),
        brokers=facts,
        brokers_problem=problem,
        racks=await children.racks(desired),
        trust=children.trust(desired),
        certificate_ends=children.certificate_ends(desired),
        users_ca_problem=await children.users_ca_problem(desired),
        authority=children.authority(desired),
        plaintext=plaintext,
        rest=rest_of(record, now),
        format_said=FormatSaid.of(status),
        at=now,
        recorded_cluster_id=status.get("clusterId", ""),
        controllers_problem=children.controllers_problem(),
        refused=await children.refused(desired),
        stuck=await children.stuck(desired),
        unknown=dict(children.unknown),
    )
    if facts is None or not facts.controller_reachable:
        return replace(seen, stored=await children.stored(desired, seen))
    rest = await brokers.rest(desired, facts, record, now)
    leaving = range(desired.spec.brokers, seen.last_broker(desired.names.broker) + 1)
    moves, why = await brokers.moves(desired, leaving)
    return replace(seen, moves=moves, moves_problem=why, rest=rest)


def _component(pod: Object) -> str:
    labels: Mapping[str, str] = pod["metadata"].get("labels") or {}
    return labels.get(COMPONENT_LABEL, "")


def broker_pods(names: Names, pods: Iterable[Object]) -> dict[int, PodState]:
    """Those that are brokers' by their names: others may have been given the labels of one."""
    found = ((names.broker_of(pod["metadata"]["name"]), pod) for pod in pods)
    return {at: pod_state(at, pod) for at, pod in found if at is not None}


def pod_state(broker_id: int, pod: Object) -> PodState:
    """A broker's pod as the plan sees it."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    annotations: Mapping[str, str] = metadata.get("annotations") or {}
    made = container_of(pod["spec"]["containers"], BROKER) or {}
    running = container_of(status.get("containerStatuses"), BROKER) or {}
    other, other_restarts = beside(status, BROKER)
    return PodState(
        broker_id=broker_id,
        name=metadata["name"],
        uid=metadata["uid"],
        ready=_condition(status, "Ready") == "True",
        terminating="deletionTimestamp" in metadata,
        template_hash=annotations.get(TEMPLATE_HASH, ""),
        image=made.get("image", ""),
        node=pod["spec"].get("nodeName") or "",
        rack=annotations.get(RACK, ""),
        trouble=trouble_of(status, running),
        restarts=int(running.get("restartCount", 0)),
        preparing=is_preparing(pod, running),
        beside=other,
        beside_restarts=other_restarts,
        start_s=_start_s(metadata, status),
        ready_since=_ready_since(metadata, status),
        mode=SecurityMode.of_pod(pod),
        unschedulable=_condition(status, "PodScheduled") == "False",
    )


def _start_s(metadata: Mapping[str, Any], status: Mapping[str, Any]) -> int:
    """From its creation until it became ready as it is now; 0: it is not ready."""
    since, until = metadata.get("creationTimestamp"), _ready_since(metadata, status)
    if not (since and until):
        return 0
    return int(seconds_between(since, until))


def _ready_since(metadata: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """See `PodState`. A kubelet that does not say counts as if it had been ready at once."""
    for each in status.get("conditions") or ():
        if (each["type"], each["status"]) == ("Ready", "True"):
            return str(each.get("lastTransitionTime") or metadata.get("creationTimestamp") or "")
    return ""


def _condition(status: Mapping[str, Any], kind: str) -> str:
    for each in status.get("conditions") or ():
        if each["type"] == kind:
            return str(each["status"])
    return "Unknown"
