"""The ConfigMap with the certificate of the CA, which clients and brokers mount: `<cluster>-trust`.

Controllers write it, because only they see both the Secret and the ConfigMap: it always fits the CA
they sign with. Two that write at once write the same. What somebody removes or changes is written
again.
"""

from typing import Any

from penstock.errors import PenstockError
from penstock.kubernetes.api import Api
from penstock.kubernetes.errors import KubernetesError
from penstock.kubernetes.names import TRUST_KEY, TRUST_LABEL, ClusterNames
from penstock.kubernetes.resources import path_of
from penstock_broker.controller.metadata_store.kubernetes_objects import ClusterObjects
from penstock_broker.observability import EventLog

_events = EventLog("trust")


def publish_trust(api: Api, objects: ClusterObjects, certificate: bytes) -> None:
    """Blocks. Raises KubernetesError."""
    names = ClusterNames(objects.cluster, objects.namespace)
    path = path_of("ConfigMap", names.namespace)
    text = certificate.decode("ascii")
    query = f"metadata.name={names.trust}"
    found = api.list(path, fieldSelector=query)
    if not found:
        _create(api, path, _config_map(objects, names.trust, text))
        return
    live = found[0]
    metadata, data = live["metadata"], live.get("data") or {}
    labels = metadata.get("labels") or {}
    if data.get(TRUST_KEY) != text or labels.get(TRUST_LABEL) != names.cluster:
        # What others added stays; the version refuses a write between list and update.
        body = {
            **live,
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {**metadata, "labels": {**labels, TRUST_LABEL: names.cluster}},
            "data": {**data, TRUST_KEY: text},
        }
        api.request("PUT", f"{path}/{names.trust}", body=body)
        _events.warning("replaced the certificates that clients trust", name=names.trust)


def try_to_publish(api: Api, objects: ClusterObjects, certificate: bytes) -> bool:
    """False: it is logged, and to be tried again."""
    try:
        publish_trust(api, objects, certificate)
    except PenstockError as error:
        _events.warning("the trust is not published yet", reason=error.message)
        return False
    return True


def _create(api: Api, path: str, body: dict[str, Any]) -> None:
    try:
        api.request("POST", path, body=body)
    except KubernetesError as error:
        if not error.is_conflict:  # the other controller was first
            raise


def _config_map(objects: ClusterObjects, name: str, text: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": objects.namespace,
            "labels": objects.labels(**{TRUST_LABEL: objects.cluster}),
            "ownerReferences": objects.owners,
        },
        "data": {TRUST_KEY: text},
    }
