"""When a Cluster gets a CA, and when another one: the operator makes it, controllers do the rest.
Also what is said of one that is lost.

    no trust published ─▶ the first        annotation with a new id, or old age ─▶ the other Secret

An id counts as done once the CA in use was made for it. So it is done once, whoever looks and
however often, and nothing has to be remembered elsewhere.
"""

from typing import Final

from penstock.kubernetes.names import ROTATE_CA
from penstock.kubernetes.rotation import SETTLED
from penstock_operator.model import MakeAuthority, Object, Observed, Severity, Wait
from penstock_operator.objects import DesiredCluster

AUTHORITY_LOST: Final = "AuthorityLost"
"""Reason of the condition Stalled."""


def plan_authority(desired: DesiredCluster, observed: Observed) -> tuple[MakeAuthority, ...]:
    """Published means that there is a CA. One that is lost later is not replaced by itself: nobody
    would trust the new one."""
    if not desired.has_tls:
        return ()
    owners = observed.authority.owners
    if not observed.trust:
        name = desired.names.authority
        if owners and name not in owners:
            return ()  # the other one is in use, and controllers publish it again
        return (MakeAuthority(name, owners.get(name)),)
    if not wants_another(desired, observed):
        return ()
    other = other_authority(desired, observed)
    return (MakeAuthority(other, owners.get(other)),)


def authority_lost(desired: DesiredCluster, observed: Observed) -> tuple[Wait, ...]:
    """Controllers still have the CA, but nobody else has: a person must act before they end."""
    rotation = observed.authority.rotation
    if not desired.has_tls or rotation is None or not rotation.is_lost:
        return ()
    cluster = desired.names.cluster
    text = (
        f"Secret {cluster}-{rotation.secret} is lost: the CA is only in the memory of controllers, "
        "and none that restarts can start; restore it from its backup, or replace it before any "
        f"restarts: kubectl penstock rotate-ca {cluster}"
    )
    return (Wait(AUTHORITY_LOST, text, Severity.BLOCKED),)


def wants_another(desired: DesiredCluster, observed: Observed) -> bool:
    """Somebody has asked for another CA, and controllers have not seen it yet."""
    seen = observed.authority
    if seen.rotation is not None and seen.rotation.phase != SETTLED:
        return False
    other = other_authority(desired, observed)
    (current,) = {*desired.names.authorities} - {other}
    asked = bool(desired.rotate_ca) and _id_of(seen.owners.get(current)) != desired.rotate_ca
    return asked or other in seen.owners or seen.is_due


def other_authority(desired: DesiredCluster, observed: Observed) -> str:
    """The Secret whose turn is next."""
    first, second = desired.names.authorities
    rotation = observed.authority.rotation
    in_use = first if rotation is None else f"{desired.names.cluster}-{rotation.secret}"
    return first if in_use == second else second


def _id_of(owner: Object | None) -> str:
    annotations = ((owner or {}).get("metadata") or {}).get("annotations") or {}
    return str(annotations.get(ROTATE_CA, ""))
