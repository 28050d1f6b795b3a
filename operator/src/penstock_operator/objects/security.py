"""What a Cluster with TLS has besides: its CA, accounts for people, what pods mount. Pure.

    Secret <cluster>-ca ── made once, mounted by controllers alone ─▶ they sign, and publish
    ConfigMap <cluster>-trust ── written by controllers ─▶ mounted by brokers and clients
    a token for enrolment ── bound to its pod by the kubelet ─▶ the broker's certificate

The operator never reads the Secret, and never writes the ConfigMap: only who has the CA can say
what fits it. A Cluster that keeps its data keeps its CA, too: clients that trust it trust the
Cluster that is created again.
"""

import base64
import json
from typing import Final

from penstock.core.manifest.objects import SecurityMode
from penstock.kubernetes.names import TRUST_KEY
from penstock_operator.objects.desired import DesiredCluster, Object
from penstock_operator.objects.pods import meta

AUTHORITY_PATH: Final = "/etc/penstock/ca"
ENROLMENT_PATH: Final = "/etc/penstock/enrolment"
TOKEN_SECONDS: Final = 3600
AUTHORITY_MOUNT: Final[Object] = {
    "name": "ca",
    "mountPath": AUTHORITY_PATH,
    "readOnly": True,
}
ENROLMENT_MOUNT: Final[Object] = {
    "name": "enrolment",
    "mountPath": ENROLMENT_PATH,
    "readOnly": True,
}


def authority_secret(desired: DesiredCluster, certificate: bytes, key: bytes) -> Object:
    """In the form of cert-manager's CA Secrets, so that one of those may be there instead."""
    metadata = meta(desired, desired.names.authority)
    if desired.keeps_data:
        del metadata["ownerReferences"]
    data = {"tls.crt": certificate, "tls.key": key, TRUST_KEY: certificate}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": metadata,
        "data": {name: base64.b64encode(value).decode() for name, value in data.items()},
    }


def accounts(desired: DesiredCluster) -> list[Object]:
    """Whose tokens may do everything, or see everything. Who may request a token of theirs is said
    by the namespace's roles."""
    if not desired.has_tls:
        return []
    return [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": meta(desired, name),
            "automountServiceAccountToken": False,
        }
        for name in (desired.names.admin, desired.names.viewer)
    ]


def authority_volume(desired: DesiredCluster) -> Object:
    """Of controllers."""
    secret = {"secretName": desired.names.authority, "defaultMode": 0o440}
    return {"name": "ca", "secret": secret}


def migration_arguments(desired: DesiredCluster) -> list[str]:
    """Of brokers and controllers that serve plaintext and TLS. An image that does not know both
    refuses it, and so has not one of them only."""
    return ["--migrate"] if desired.mode is SecurityMode.MIGRATE else []


def authority_arguments(desired: DesiredCluster) -> list[str]:
    """Of controllers. An image of an older release refuses them instead of serving in plaintext."""
    if not desired.has_tls:
        return []
    external = desired.external
    hosts = [external.host] if external is not None and external.host else []
    return [
        f"--ca-certificate={AUTHORITY_PATH}/tls.crt",
        f"--ca-key={AUTHORITY_PATH}/tls.key",
        f"--new-cluster-id={desired.uid}",
        *(f"--certificate-host={host}" for host in hosts),
    ]


def oidc_environment(desired: DesiredCluster) -> list[Object]:
    """Of controllers, which fetch the issuers' keys. An image of an older release ignores it: then
    these issuers' users do not get in."""
    if not desired.has_tls or not desired.spec.oidc:
        return []
    issuers = [
        {
            "issuer": one.issuer,
            "audience": one.audience,
            "usernameClaim": one.username_claim,
            "groupsClaim": one.groups_claim,
        }
        for one in desired.spec.oidc
    ]
    return [{"name": "PENSTOCK_OIDC_ISSUERS", "value": json.dumps(issuers)}]


def enrolment_volume(desired: DesiredCluster) -> Object:
    """Of brokers: whom to trust, and the token that says which pod this is."""
    names = desired.names
    token = {
        "path": "token",
        "audience": names.enrolment_audience,
        "expirationSeconds": TOKEN_SECONDS,
    }
    trust = {"name": names.trust, "items": [{"key": TRUST_KEY, "path": TRUST_KEY}]}
    sources: list[Object] = [{"serviceAccountToken": token}, {"configMap": trust}]
    return {"name": "enrolment", "projected": {"defaultMode": 0o440, "sources": sources}}


def enrolment_arguments(desired: DesiredCluster) -> list[str]:
    """Of brokers; as for controllers."""
    if not desired.has_tls:
        return []
    return [
        f"--enrol-at={desired.names.enrolment_address}",
        f"--enrol-token={ENROLMENT_PATH}/token",
        f"--enrol-ca={ENROLMENT_PATH}/{TRUST_KEY}",
    ]
