"""Which template the pods of a running Cluster have: the live one, until the spec changes or a
person agrees (I37).

    live ── hash is ours ───────────────────────────────────────▶ ours: drift is healed
         ── spec that it was made from says the same as now ────▶ the live one stays
         ── the spec changed ───────────────────────────────────▶ ours, with the live image
         ── approved, or spec.upgrade.policy Automatic ─────────▶ ours, with the newest image

So another operator, with another template or another default image, restarts nothing. Whether a
spec says the same is decided from the record (`objects.sections`); an object that has none is
compared with what the spec asks for, part by part. A step of the security mode is a change of the
spec, and so is an image that is no longer named: then the operator's own counts. Pure.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock.core.manifest.containers import BROKER, CONTROLLER, container_of
from penstock.core.manifest.fields import Report, read_fields
from penstock.core.manifest.objects import MIN_INSYNC, REPLICATION_FACTOR, ClusterSpec, SecurityMode
from penstock.core.manifest.schema import CLUSTER_SPEC
from penstock.core.settings import split_config
from penstock_operator.compare import contains
from penstock_operator.model import Object
from penstock_operator.names import TEMPLATE_HASH
from penstock_operator.objects import DesiredCluster, last_of
from penstock_operator.objects.broker import broker_set, live_template_hash
from penstock_operator.objects.controller import deployment
from penstock_operator.objects.pods import fingerprint

_Parts = Callable[[ClusterSpec, SecurityMode], tuple[object, ...]]
_ASKED_FOR: Final = (
    "--config=",
    "--rack-file=",
    "--external-",
    "--migrate",
    "--enrol-at=",
    "--owner-uid=",
    "--ca-key=",
    "--certificate-host=",
)
"""How options begin that say what a spec asks for."""
_ASKED_FOR_BY_VARIABLE: Final = ("PENSTOCK_OIDC_ISSUERS", "PENSTOCK_EXTERNAL_CERTIFICATE_PORT")


@dataclass(frozen=True, slots=True)
class Pods:
    """Of brokers or controllers: `wanted` is what is to be applied, `newest` what could be.

    `hash`, `newest_hash`: of their templates. `stays`: the live template, not one of ours.
    """

    wanted: Object
    hash: str
    newest: Object
    newest_hash: str
    stays: bool = False

    @property
    def is_newest(self) -> bool:
        return self.hash == self.newest_hash


def broker_pods(
    desired: DesiredCluster, replicas: int, live: Object | None, other: Object | None
) -> Pods:
    """`live`: the StatefulSet. `other`: the Deployment, whose image counts if there is no set."""
    newest = broker_set(desired, replicas)
    newest_hash = live_template_hash(newest)
    is_live = live is not None and live_template_hash(live) == newest_hash
    if desired.takes_newest or is_live:
        return Pods(newest, newest_hash, newest, newest_hash)
    pinned = _with_image_of(desired, live or other)
    wanted = broker_set(pinned, replicas)
    own = live_template_hash(wanted)
    if live is None or live_template_hash(live) == own:
        return Pods(wanted, own, newest, newest_hash)
    mode = SecurityMode.of_pod(live["spec"]["template"])
    if _says_the_same(pinned, live, wanted, mode, _of_brokers):
        kept = _with_template_of(live, wanted)
        return Pods(kept, live_template_hash(live), newest, newest_hash, stays=True)
    return Pods(wanted, own, newest, newest_hash)


def controller_pods(desired: DesiredCluster, live: Object | None, other: Object | None) -> Pods:
    """`live`: the Deployment. `other`: the StatefulSet, whose image counts if there is none."""
    newest = deployment(desired)
    newest_hash = _hash_of(newest)
    is_live = live is not None and _live_hash(live, newest, newest_hash) == newest_hash
    if desired.takes_newest or is_live:
        return Pods(_hashed(newest, newest_hash), newest_hash, newest, newest_hash)
    pinned = _with_image_of(desired, live or other)
    wanted = deployment(pinned)
    own = _hash_of(wanted)
    found = own if live is None else _live_hash(live, wanted, own)
    if live is not None and found != own:
        mode = SecurityMode.of_controller(live["spec"]["template"])
        if _says_the_same(pinned, live, wanted, mode, _of_controllers):
            kept = _hashed(_with_template_of(live, wanted), found)
            return Pods(kept, found, newest, newest_hash, stays=True)
    return Pods(_hashed(wanted, own), own, newest, newest_hash)


def _with_image_of(desired: DesiredCluster, live: Object | None) -> DesiredCluster:
    if live is None or desired.spec.image or last_of([None, live]).spec.get("image"):
        return desired
    image = own_container(live["spec"]["template"]).get("image")
    return replace(desired, image=image) if image else desired


def own_container(template: Object) -> Mapping[str, Any]:
    """Of a StatefulSet's or Deployment's template; empty: it has none."""
    return container_of(template["spec"]["containers"], BROKER, CONTROLLER) or {}


def _with_template_of(live: Object, wanted: Object) -> Object:
    """The server writes some fields as null, which nobody can ask for."""
    kept = _without_nulls(live["spec"]["template"])
    return {**wanted, "spec": {**wanted["spec"], "template": kept}}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def is_made(pods: Pods, live: Object) -> bool:
    """Whether the live Deployment has the template that these pods of controllers shall have."""
    return _live_hash(live, pods.wanted, pods.hash) == pods.hash


# ── A Deployment's hash: its template has none, which would restart controllers for it ────────


def _hash_of(made: Object) -> str:
    return fingerprint(made["spec"]["template"])


def _live_hash(live: Object, wanted: Object, own: str) -> str:
    """Of one that an operator without hashes has made: ours if it has all that ours has."""
    annotations: Mapping[str, str] = live["metadata"].get("annotations") or {}
    if TEMPLATE_HASH in annotations:
        return annotations[TEMPLATE_HASH]
    template = live["spec"]["template"]
    return own if contains(template, wanted["spec"]["template"]) else fingerprint(template)


def _hashed(made: Object, text: str) -> Object:
    metadata = made["metadata"]
    annotations = {**metadata.get("annotations", {}), TEMPLATE_HASH: text}
    return {**made, "metadata": {**metadata, "annotations": annotations}}


# ── Whether a spec has changed since a template was made ──────────────────────────────────────


def _says_the_same(
    desired: DesiredCluster, live: Object, wanted: Object, mode: SecurityMode | None, parts: _Parts
) -> bool:
    """`mode`: of the live template; None: nobody can tell."""
    if mode is not desired.mode:
        return False
    last = last_of([None, live])
    if not last.knows:
        return _asks_for_the_same(desired, live["spec"]["template"], wanted["spec"]["template"])
    fields = read_fields(CLUSTER_SPEC, last.spec, "spec", Report(""))
    return parts(ClusterSpec.from_values(fields), mode) == parts(desired.spec, mode)


def _of_both(spec: ClusterSpec) -> tuple[object, ...]:
    return spec.image, spec.image_pull_policy, spec.pod


def _of_brokers(spec: ClusterSpec, mode: SecurityMode) -> tuple[object, ...]:
    """What a spec says about the brokers' pods."""
    certificates = spec.client_certificates if mode.has_tls else None
    settings, _ = split_config(spec.config)
    more = (spec.resources, spec.rack_topology_key, spec.external, certificates, settings)
    return (*_of_both(spec), *more)


def _of_controllers(spec: ClusterSpec, mode: SecurityMode) -> tuple[object, ...]:
    """What a spec says about the controllers' pods."""
    host = spec.external.host if mode.has_tls and spec.external is not None else ""
    oidc = spec.oidc if mode.has_tls else ()
    _, settings = split_config(spec.config)
    effective = spec.effective_config()
    factors = effective[REPLICATION_FACTOR], effective[MIN_INSYNC]
    more = (spec.controllers.resources, spec.deletion_policy, host, oidc, settings, factors)
    return (*_of_both(spec), *more)


def _asks_for_the_same(desired: DesiredCluster, live: Object, wanted: Object) -> bool:
    """For a template without a record: whether all that comes from the spec is in it."""
    return contains(_asked_for(desired, live), _asked_for(desired, wanted))


def _asked_for(desired: DesiredCluster, template: Object) -> Object:
    spec = template["spec"]
    container = own_container(template)
    args: Sequence[str] = container.get("args") or ()
    variables = {each["name"]: each.get("value", "") for each in container.get("env") or ()}
    users = [each for each in spec.get("volumes") or () if each["name"] == "users-ca"]
    given: Object = {
        "image": container.get("image"),
        "args": [each for each in args if each.startswith(_ASKED_FOR)],
        "variables": [variables.get(name, "") for name in _ASKED_FOR_BY_VARIABLE],
        "users": [each["configMap"]["name"] for each in users],
        "nodeSelector": spec.get("nodeSelector") or {},
        "tolerations": spec.get("tolerations") or [],
    }
    if desired.spec.image_pull_policy:
        given["imagePullPolicy"] = container.get("imagePullPolicy")
    if desired.spec.resources.requests or desired.spec.resources.limits:
        given["resources"] = container.get("resources") or {}
    return given
