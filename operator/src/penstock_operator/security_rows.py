"""What a Cluster's status says of security: who may connect, certificates that end, a new CA. Pure.

Nothing waits for any of it: `Secured` and `RotatingCA` are for whoever looks.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from penstock.core.manifest.objects import SecurityMode
from penstock.kubernetes.certificate_ends import CertificateEnd, soonest
from penstock.kubernetes.names import AUTHORITY_ENDS, SERVER_CERTIFICATE_ENDS
from penstock.kubernetes.rotation import SETTLED
from penstock_operator.conditions import condition
from penstock_operator.model import Object, Observed
from penstock_operator.names import SECURE_PORT
from penstock_operator.objects import DesiredCluster, Section
from penstock_operator.plan.authority import other_authority, wants_another

SECURED: Final = "Secured"
ROTATING_CA: Final = "RotatingCA"
CERTIFICATE_WARNING: Final = timedelta(days=7)
"""Before the end of a server's certificate, which lasts 30 days and is renewed ten before."""
AUTHORITY_WARNING: Final = timedelta(days=90)
"""Before the end of the CA: time to change it without haste."""
_SECURED_ROWS: Final = {
    SecurityMode.STRICT: ("True", "Strict", "everybody shows who they are"),
    SecurityMode.MIGRATE: (
        "False",
        "Migrating",
        (
            "whoever reaches a plaintext port may do everything; once all clients use "
            f"{SECURE_PORT}, set spec.security.mode Strict"
        ),
    ),
    SecurityMode.DISABLED: (
        "False",
        "SecurityDisabled",
        (
            "whoever reaches a broker may read and change everything; spec.security.mode Migrate "
            "lets clients move to TLS, and then Strict asks everybody who they are"
        ),
    ),
}
"""By the weakest mode of a broker that runs."""
_PHASES: Final = {
    "TrustingBoth": "servers learn to trust both CAs",
    "WaitingForClients": "clients learn to trust both CAs",
    "RenewingCertificates": "servers get certificates of the new CA",
    "DroppingOld": "servers stop trusting the old CA",
    "RemovingOldKey": "the old CA's key goes; a Secret that Penstock did not make, delete yourself",
}


def secured(
    desired: DesiredCluster,
    observed: Observed,
    ends: datetime | None,
    before: Sequence[Mapping[str, Any]],
    now: str,
) -> list[Object]:
    """A warning to whoever looks; nothing waits for it. What runs counts, not what is asked for.
    As before, or none, while neither is known.

    `ends`: when the CA does; None: it is not known.
    """
    known = next((each for each in before if each["type"] == SECURED), None)
    if not observed.pods and not (desired.knows(Section.TEMPLATE) and observed.knows("Pod")):
        return [] if known is None else [dict(known)]
    modes = [pod.mode for pod in observed.pods.values()] or [desired.spec.security]
    weakest = SecurityMode.weakest(modes)
    if weakest is None or None in modes:
        return [] if known is None else [dict(known)]
    status, reason, words = _SECURED_ROWS[weakest]
    soon = datetime.fromisoformat(now) + AUTHORITY_WARNING
    if weakest.has_tls and ends is not None and ends < soon:
        reason = AUTHORITY_ENDS
        words = (
            f"the CA ends at {_rfc3339(ends)}: nobody can connect from then on; replace it before "
            f"that: kubectl penstock rotate-ca {desired.names.cluster}"
        )
    elif weakest.has_tls and (first := soonest(observed.certificate_ends)) and _ends(first, now):
        reason = SERVER_CERTIFICATE_ENDS
        words = (
            f"the certificate of {first[0]} ends at {first[1].at} and was not renewed: nobody can "
            "connect to it from then on; its log says why"
        )
    elif weakest.has_tls and observed.users_ca_problem:
        reason, words = "UsersCaNotUsed", observed.users_ca_problem
    row = (SECURED, status, reason, words)
    return [condition(row, desired.generation, known, now)]


def _ends(first: tuple[str, CertificateEnd], now: str) -> bool:
    """Whether this certificate should have been renewed by now."""
    return first[1].at_s < (datetime.fromisoformat(now) + CERTIFICATE_WARNING).timestamp()


def certificate_rows(
    desired: DesiredCluster, observed: Observed, ends: datetime | None, before: Mapping[str, Any]
) -> Object:
    """When the CA ends, and the first server's certificate; `ends`: see `secured`.

    No row of servers' certificates where there never was TLS.
    """
    rows: Object = {"authorityExpires": ""}
    if ends is not None and desired.has_tls:
        rows["authorityExpires"] = _rfc3339(ends)
    first = soonest(observed.certificate_ends) if desired.has_tls else None
    if first is not None:
        rows["certificates"] = {"expires": first[1].at, "server": first[0]}
    elif "certificates" in before:
        rows["certificates"] = {"expires": "", "server": ""}
    return rows


def rotating(
    desired: DesiredCluster, observed: Observed, before: Sequence[Mapping[str, Any]], now: str
) -> list[Object]:
    """None before the first time. Nothing else waits for it: the Cluster works all the while."""
    if not desired.has_tls:
        return []
    known = next((each for each in before if each["type"] == ROTATING_CA), None)
    seen = observed.authority.rotation
    if seen is not None and seen.phase != SETTLED:
        waits = f"; waits for {', '.join(seen.waits)}" if seen.waits else ""
        row = ("True", seen.phase, f"{_PHASES.get(seen.phase, 'goes on')}{waits}")
    elif wants_another(desired, observed):
        other = other_authority(desired, observed)
        row = ("True", "Requested", f"controllers do not see Secret {other} yet")
    elif seen is None and known is None:
        return []
    else:
        row = ("False", "Settled", "servers and clients use one CA")
    return [condition((ROTATING_CA, *row), desired.generation, known, now)]


def _rfc3339(when: datetime) -> str:
    return f"{when:%Y-%m-%dT%H:%M:%SZ}"
