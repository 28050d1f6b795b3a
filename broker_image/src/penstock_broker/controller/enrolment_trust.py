"""ConfigMap `<cluster>-trust`: the CAs that clients and brokers mount, and how far a rotation is.

    data         ca.crt     certificates of the CAs that are trusted, newest last
    annotations             see `ca_state`

Controllers write it, because only they see the Secrets: it always fits the CA they sign with. A
write names the version that was read, so of two at once one is refused. What somebody removes or
changes is written again. The Secret of each CA is owned by a ConfigMap of the same name:
Kubernetes deletes it with that, which needs no right to touch Secrets.
"""

from penstock.kubernetes.api import Api
from penstock.kubernetes.errors import KubernetesError
from penstock.kubernetes.names import TRUST_KEY, TRUST_LABEL, ClusterNames
from penstock.kubernetes.resources import Json, path_of
from penstock_broker.certificates.rotation import Slot
from penstock_broker.controller.ca_state import Seen, Shown, annotations_of, decoded
from penstock_broker.controller.metadata_store.kubernetes_objects import ClusterObjects
from penstock_broker.observability import EventLog

_events = EventLog("trust")


class TrustMap:
    """Of one cluster. Blocks."""

    def __init__(self, api: Api, objects: ClusterObjects) -> None:
        self._api, self._objects = api, objects
        self._names = ClusterNames(objects.cluster, objects.namespace)
        self._path = path_of("ConfigMap", objects.namespace)

    def read(self) -> Seen:
        """Raises KubernetesError."""
        found = self._api.list(self._path, fieldSelector=f"metadata.name={self._names.trust}")
        of_ours = self._api.list(self._path, labelSelector=f"{TRUST_LABEL}={self._names.cluster}")
        by_name = {each["metadata"]["name"]: each for each in of_ours}
        names = zip(Slot, self._names.authorities, strict=True)
        owners = {slot: by_name[name] for slot, name in names if name in by_name}
        live = found[0] if found else None
        return Seen(Shown() if live is None else decoded(live), live, owners)

    def write(self, seen: Seen, shown: Shown) -> bool:
        """False: nothing had to be written. Raises KubernetesError, a conflict if it is no longer
        what was `seen`."""
        body = self._body(seen.live, shown)
        if seen.live is None:
            if shown.roots is None:
                return False
            self._api.request("POST", self._path, body=body)
            return True
        if body == {**seen.live, "apiVersion": "v1", "kind": "ConfigMap"}:
            return False
        self._api.request("PUT", f"{self._path}/{self._names.trust}", body=body)
        if shown.roots is not None and shown.roots != seen.shown.roots:
            _events.warning("replaced the certificates that clients trust", name=self._names.trust)
        return True

    def release(self, seen: Seen, slot: Slot) -> None:
        """Deletes what owns the Secret of a CA, and so the Secret. Raises KubernetesError."""
        owner = seen.owners.get(slot)
        if owner is None:
            return
        metadata = owner["metadata"]
        body = {"preconditions": {"uid": metadata["uid"]}}
        try:
            self._api.request("DELETE", f"{self._path}/{metadata['name']}", body=body)
        except KubernetesError as error:
            if not error.is_missing:
                raise
        else:
            _events.info("removed the key of the former CA", name=metadata["name"])

    def _body(self, live: Json | None, shown: Shown) -> Json:
        """What others added stays."""
        metadata = self._metadata() if live is None else live["metadata"]
        labels = {**(metadata.get("labels") or {}), TRUST_LABEL: self._names.cluster}
        annotations = {**(metadata.get("annotations") or {}), **annotations_of(shown)}
        annotations = {name: text for name, text in annotations.items() if text}
        metadata = {**metadata, "labels": labels}
        metadata.pop("annotations", None)
        if annotations:
            metadata["annotations"] = annotations
        data = dict((live or {}).get("data") or {})
        if shown.roots is not None:
            data[TRUST_KEY] = shown.roots.decode("ascii")
        kind = {"apiVersion": "v1", "kind": "ConfigMap"}
        return {**(live or {}), **kind, "metadata": metadata, "data": data}

    def _metadata(self) -> Json:
        objects = self._objects
        return {
            "name": self._names.trust,
            "namespace": objects.namespace,
            "labels": objects.labels(**{TRUST_LABEL: objects.cluster}),
            "ownerReferences": objects.owners,
        }
