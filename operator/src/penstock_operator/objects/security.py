"""What a Cluster with TLS has besides: its CA, accounts for people, what pods mount. Pure.

    Secret <cluster>-ca ── made once, mounted by controllers alone ─▶ they sign, and publish
    Secret <cluster>-ca-2 ── when the CA is rotated: the two take turns
    ConfigMap <cluster>-trust ── written by controllers ─▶ mounted by brokers and clients
    ConfigMap of the users' CA ── made by whoever has it ─▶ mounted by brokers, if it is there
    a token for enrolment ── bound to its pod by the kubelet ─▶ the broker's certificate

The operator never reads the Secret, and never writes the ConfigMap: only who has the CA can say
what fits it. A Cluster that keeps its data keeps its CA, too: clients that trust it trust the
Cluster that is created again.
"""

import base64
import json
from typing import Final

from penstock.certificates import check_users_authorities
from penstock.core.manifest.client_certificates import ClientCertificates
from penstock.core.manifest.objects import SecurityMode
from penstock.errors import MisuseError
from penstock.kubernetes.names import ROTATE_CA, ROTATE_CA_WAIT, TRUST_KEY, TRUST_LABEL
from penstock_operator.model import Object
from penstock_operator.objects.desired import DesiredCluster
from penstock_operator.objects.pods import meta

AUTHORITY_PATH: Final = "/etc/penstock/ca"
USERS_CA_PATH: Final = "/etc/penstock/users"
USERS_CA_KEY: Final = "ca.crt"
SECOND: Final = "second"
ENROLMENT_PATH: Final = "/etc/penstock/enrolment"
TOKEN_SECONDS: Final = 3600
AUTHORITY_MOUNT: Final[Object] = {
    "name": "ca",
    "mountPath": AUTHORITY_PATH,
    "readOnly": True,
}
USERS_CA_MOUNT: Final[Object] = {
    "name": "users-ca",
    "mountPath": USERS_CA_PATH,
    "readOnly": True,
}
ENROLMENT_MOUNT: Final[Object] = {
    "name": "enrolment",
    "mountPath": ENROLMENT_PATH,
    "readOnly": True,
}


def authority_owner(desired: DesiredCluster, name: str) -> Object:
    """The ConfigMap that owns the Secret of a CA, has its name, and takes it along when it goes.
    Controllers may delete it, and nobody of us a Secret: whoever may delete Secrets can read them.
    It says which request asked for this CA."""
    metadata = meta(desired, name)
    if desired.keeps_data:
        del metadata["ownerReferences"]
    metadata["labels"] = {**desired.names.lasting_labels(), TRUST_LABEL: desired.names.cluster}
    asked = {ROTATE_CA: desired.rotate_ca, ROTATE_CA_WAIT: desired.rotate_ca_wait}
    metadata["annotations"] = {key: text for key, text in asked.items() if text}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


def authority_secret(
    desired: DesiredCluster, owner: Object, certificate: bytes, key: bytes
) -> Object:
    """In the form of cert-manager's CA Secrets, so that one of those may be there instead."""
    metadata = meta(desired, owner["metadata"]["name"])
    named = {key: owner["metadata"][key] for key in ("name", "uid")}
    kind = {"apiVersion": "v1", "kind": "ConfigMap"}
    metadata["ownerReferences"] = [{**kind, "blockOwnerDeletion": False, **named}]
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
    """Of controllers. Both Secrets are optional: so another CA comes and the old one goes while
    pods run. Without any, a controller does not start."""
    sources = [
        {"secret": {"name": name, "optional": True, "items": _below(folder)}}
        for name, folder in zip(desired.names.authorities, ("", f"{SECOND}/"), strict=True)
    ]
    return {"name": "ca", "projected": {"defaultMode": 0o440, "sources": sources}}


def _below(folder: str) -> list[Object]:
    return [{"key": key, "path": f"{folder}{key}"} for key in ("tls.crt", "tls.key")]


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
        f"--second-ca={AUTHORITY_PATH}/{SECOND}",
        f"--controllers={desired.controllers}",
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


def users_ca_volume(given: ClientCertificates) -> Object:
    """Of brokers. Optional: while it is missing they serve all who do not show a certificate."""
    items = [{"key": USERS_CA_KEY, "path": USERS_CA_KEY}]
    config_map: Object = {
        "name": given.config_map,
        "defaultMode": 0o440,
        "optional": True,
        "items": items,
    }
    return {"name": "users-ca", "configMap": config_map}


def users_ca_environment(given: ClientCertificates) -> list[Object]:
    """Of brokers, beside the port. An image of an older release ignores it: then nobody gets in by
    certificate. The port is broker 0's."""
    found = [{"name": "PENSTOCK_USERS_CA", "value": f"{USERS_CA_PATH}/{USERS_CA_KEY}"}]
    if given.node_port:
        port = str(given.node_port + 1)
        found.append({"name": "PENSTOCK_EXTERNAL_CERTIFICATE_PORT", "value": port})
    return found


def users_ca_problem(desired: DesiredCluster, config_map: Object | None, trust: str) -> str:
    """Why brokers cannot use what is in the ConfigMap (None: it is missing), and what to do.

    `trust`: the cluster's CA (PEM); "": not known yet.
    """
    given = desired.client_certificates
    if given is None:
        return ""
    name, namespace = given.config_map, desired.names.namespace
    make = f"kubectl -n {namespace} create configmap {name} --from-file={USERS_CA_KEY}"
    if config_map is None:
        return f"ConfigMap {name} is missing: nobody gets in by certificate; make it: {make}"
    text = (config_map.get("data") or {}).get(USERS_CA_KEY)
    if not text:
        return (
            f"ConfigMap {name} has no key {USERS_CA_KEY}: nobody gets in by certificate; put the "
            "users' CA (PEM) there"
        )
    try:
        check_users_authorities(str(text).encode(), trust.encode())
    except MisuseError as error:
        return f"ConfigMap {name}: {error.message}; brokers go on with the former one, if any"
    return ""
