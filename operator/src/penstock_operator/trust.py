"""Copies of ConfigMap `<cluster>-trust` in the namespaces of clients.

    namespace etl, label flights.air.trust.penstock.dev/copy ─▶ ConfigMap etl/flights-trust

A pod mounts ConfigMaps of its own namespace only. Whoever may label a namespace asks for a copy
there; the operator keeps it as the original is, and deletes it with the label or the Cluster. Each
copy has the label, too: a ConfigMap without it belongs to somebody else and is left alone.

Nothing is listed unless a namespace, a copy or the original changed, or five minutes have passed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final

from penstock.kubernetes.errors import KubernetesError
from penstock.kubernetes.names import TRUST_COPY_LABEL, ClusterNames, trust_copy_label
from penstock.logs import EventLog
from penstock_operator.events import Events
from penstock_operator.kube import Kube
from penstock_operator.model import Object
from penstock_operator.names import FIELD_MANAGER

RELIST_S: Final = 300.0
_log = EventLog("penstock_operator.trust")


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """`create`: namespaces. `change`, `delete`: copies as they are."""

    create: Sequence[str] = ()
    change: Sequence[Object] = ()
    delete: Sequence[Object] = ()


def plan_copies(
    data: Mapping[str, str] | None, wanted: Sequence[str], copies: Sequence[Object], name: str
) -> CopyPlan:
    """What makes `copies` those of `data` in the `wanted` namespaces. Pure.

    `data` None: there must be none; empty: the original is not there yet, so nothing is written.
    """
    asked = set(wanted) if data is not None else set()
    there, delete = {}, []
    for copy in copies:
        namespace = copy["metadata"]["namespace"]
        if copy["metadata"]["name"] != name:
            continue  # somebody has put our label on something else
        if namespace in asked:
            there[namespace] = copy
        else:
            delete.append(copy)
    if not data:
        return CopyPlan(delete=delete)
    change = [copy for copy in there.values() if (copy.get("data") or {}) != dict(data)]
    return CopyPlan(sorted(asked - there.keys()), change, delete)


class TrustCopies:
    """Those of one Cluster."""

    def __init__(
        self, kube: Kube, events: Events, names: ClusterNames, watched: Sequence[str]
    ) -> None:
        """`watched`: the only namespaces that there may be copies in; empty: all."""
        self._kube, self._events, self._names = kube, events, names
        self._watched = [each for each in watched if each != names.namespace]
        self._everywhere = not watched
        self._label = trust_copy_label(names)
        self._data: Mapping[str, str] | None = None
        self._listed_s = 0.0
        self.dirty = True

    async def reconcile(self, body: Object | None, data: Mapping[str, str] | None) -> bool:
        """Whether the copies are as they should be. Does not raise: nothing else waits for them.

        `body`: the Cluster; None: it has gone. `data`: see `plan_copies`.
        """
        is_recent = monotonic() - self._listed_s < RELIST_S
        if not self.dirty and is_recent and data == self._data:
            return True
        self.dirty = False  # set again by any change from here on
        try:
            done = await self._reconcile(body, data)
        except KubernetesError as error:
            await self._tell(body, f"cannot look for copies of its trust: {error.message}")
            done = False
        self._data, self._listed_s = data, monotonic()
        self.dirty = self.dirty or not done
        return done

    async def _reconcile(self, body: Object | None, data: Mapping[str, str] | None) -> bool:
        copies = await self._copies()
        wanted = [] if data is None else await self._wanted()
        plan = plan_copies(data, wanted, copies, self._names.trust)
        done = True
        for namespace in plan.create:
            done = await self._create(body, namespace, data or {}) and done
        for copy in plan.change:
            done = await self._change(body, copy, data or {}) and done
        for copy in plan.delete:
            done = await self._delete(body, copy) and done
        return done

    async def _wanted(self) -> list[str]:
        """Namespaces that ask for a copy; the original is in the Cluster's own."""
        if self._everywhere:
            found = await self._kube.list("Namespace", None, self._label)
        else:
            answers = [await self._kube.get("Namespace", None, each) for each in self._watched]
            found = [each for each in answers if each is not None]
        return [
            each["metadata"]["name"]
            for each in found
            if self._label in (each["metadata"].get("labels") or {})
            and each["metadata"]["name"] != self._names.namespace
            and "deletionTimestamp" not in each["metadata"]
        ]

    async def _copies(self) -> list[Object]:
        if self._everywhere:
            return await self._kube.list("ConfigMap", None, self._label)
        return [
            copy
            for namespace in self._watched
            for copy in await self._kube.list("ConfigMap", namespace, self._label)
        ]

    async def _create(self, body: Object | None, namespace: str, data: Mapping[str, str]) -> bool:
        made = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": self._names.trust,
                "namespace": namespace,
                "labels": {
                    "app.kubernetes.io/managed-by": FIELD_MANAGER,
                    TRUST_COPY_LABEL: "",
                    self._label: "",
                },
            },
            "data": dict(data),
        }
        where = f"{namespace}/{self._names.trust}"
        try:
            await self._kube.create("ConfigMap", namespace, made)
        except KubernetesError as error:
            why = error.message
            if error.is_conflict:
                why = "another one is there, which is left alone; delete it or the label"
            await self._tell(body, f"cannot copy its trust to ConfigMap {where}: {why}")
            return False
        _log.info("copied the trust", config_map=where)
        return True

    async def _change(self, body: Object | None, copy: Object, data: Mapping[str, str]) -> bool:
        metadata = copy["metadata"]
        gone = dict.fromkeys((copy.get("data") or {}).keys() - data.keys())
        # The uid refuses a write to one that somebody has made in its place.
        change = {"metadata": {"uid": metadata["uid"]}, "data": {**gone, **data}}
        where = f"{metadata['namespace']}/{metadata['name']}"
        try:
            await self._kube.merge("ConfigMap", metadata["namespace"], metadata["name"], change)
        except KubernetesError as error:
            await self._tell(body, f"cannot update its trust in ConfigMap {where}: {error.message}")
            return False
        _log.info("updated a copy of the trust", config_map=where)
        return True

    async def _delete(self, body: Object | None, copy: Object) -> bool:
        metadata = copy["metadata"]
        where = f"{metadata['namespace']}/{metadata['name']}"
        try:
            await self._kube.delete(
                "ConfigMap", metadata["namespace"], metadata["name"], metadata["uid"]
            )
        except KubernetesError as error:
            await self._tell(body, f"cannot delete ConfigMap {where}: {error.message}")
            return False
        _log.info("deleted a copy of the trust", config_map=where)
        return True

    async def _tell(self, body: Object | None, what: str) -> None:
        """An Event of the Cluster, while there is one."""
        text = f"Cluster {self._names.cluster} {what}"
        if body is None:
            _log.warning(text)
        else:
            await self._events.tell(body, "Cluster", "TrustNotCopied", text, warning=True)
