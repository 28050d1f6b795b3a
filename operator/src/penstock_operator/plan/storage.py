"""Volumes grow before anything else, whatever state the brokers are in (I28); they never shrink.

A StatefulSet's claim template is immutable. When every claim has been asked to grow, the set is
deleted without its pods and created again with the new template: nothing restarts.

The claim of a broker that was let go stays as it is until the broker comes back: many drivers grow
a volume only while a pod uses it.
"""

from penstock.kubernetes.quantity import quantity
from penstock_operator.model import (
    Action,
    GrowClaim,
    Object,
    Observed,
    OrphanSet,
    Severity,
    Wait,
)
from penstock_operator.objects import DesiredCluster
from penstock_operator.plan.gates import broker_ids
from penstock_operator.volume_model import ClaimState


def plan_storage(
    desired: DesiredCluster, observed: Observed, *, may_replace: bool
) -> tuple[tuple[Action, ...], tuple[Wait, ...]]:
    """`may_replace`: the StatefulSet can be made again as it is. If not, its claim template stays
    for now: a volume of a new broker then grows after it was made."""
    size = desired.spec.storage_size
    bytes_wanted = int(quantity(size) or 0)
    ids = broker_ids(desired, observed)
    claims = [claim for claim in observed.claims.values() if claim.broker_id in ids]
    actions: list[Action] = []
    waits: list[Wait] = []
    for claim in claims:
        if claim.requested < bytes_wanted and claim.expandable:
            actions.append(GrowClaim(claim.name, claim.uid, size))
        waits.extend(_claim_waits(claim, bytes_wanted, size))
    live = observed.live("StatefulSet", desired.names.broker)
    grown = all(claim.requested >= bytes_wanted for claim in claims)
    if may_replace and live is not None and grown and _template_size(live) != bytes_wanted:
        uid = live["metadata"]["uid"]
        actions.append(
            OrphanSet(desired.names.broker, uid, f"volumes of new brokers will have {size}")
        )
    return tuple(actions), tuple(waits)


def _claim_waits(claim: ClaimState, wanted: int, size: str) -> list[Wait]:
    if claim.requested < wanted and not claim.expandable:
        text = (
            f"volume {claim.name} cannot grow to {size}: its storage class does not allow "
            "expansion; restore spec.storage.size, or set allowVolumeExpansion on the class"
        )
        return [Wait("StorageCannotGrow", text, Severity.BLOCKED)]
    if claim.requested > wanted:
        text = (
            f"volume {claim.name} is larger than {size}; volumes can never shrink: "
            "restore spec.storage.size"
        )
        return [Wait("StorageCannotShrink", text, Severity.BLOCKED)]
    if 0 < claim.capacity < claim.requested:
        text = f"volume {claim.name} is growing to {size}"
        return [Wait("VolumeGrowing", f"{text}: {claim.resizing}" if claim.resizing else text)]
    return []


def with_claim_template(wanted: Object, live: Object | None) -> Object:
    """The set as it can be applied: with the live set's claim templates, which never change."""
    if live is None:
        return wanted
    kept = [_as_applied(template) for template in live["spec"]["volumeClaimTemplates"]]
    return {**wanted, "spec": {**wanted["spec"], "volumeClaimTemplates": kept}}


def _as_applied(template: Object) -> Object:
    """Without what the server added."""
    metadata = {key: template["metadata"][key] for key in ("name", "labels")}
    keys = ("accessModes", "resources", "storageClassName")
    return {
        "metadata": metadata,
        "spec": {key: template["spec"][key] for key in keys if key in template["spec"]},
    }


def _template_size(live: Object) -> int:
    template: Object = live["spec"]["volumeClaimTemplates"][0]
    return int(quantity(template["spec"]["resources"]["requests"]["storage"]) or 0)
