"""What `kubectl penstock access` says: how to get into a Cluster, and who may do what. Pure.

    Snapshot ──describe──▶ {"cluster": …, "mode": …, "audience": …, "rules": […], "quotas": […]}

Rules and quotas are those that are in force: they come from the controller's own documents, so that
they are visible even if no broker answers, and whether a manifest or `penstock acl` has set them.
"""

from typing import Any

from penstock.cli.access_rows import quota_row, rule_row
from penstock.cli.kube.reach import SECURE_PORT
from penstock.cli.kube.snapshot import Snapshot, condition, full_name
from penstock.client.cluster.credentials import MOUNT
from penstock.core.authorization import CLUSTER, Kind, Resource
from penstock.core.manifest.objects import SecurityMode
from penstock.kubernetes.names import TRUST_KEY, ClusterNames
from penstock.kubernetes.resources import Json


def describe(snapshot: Snapshot) -> dict[str, Any]:
    """One document. `asks_who_calls` False: rules and quotas are stored, and nobody obeys them."""
    spec = snapshot.cluster.get("spec") or {}
    security = spec.get("security") or {}
    mode = str(security.get("mode") or SecurityMode.DISABLED.value)
    asks = mode != SecurityMode.DISABLED.value
    seen: dict[str, Any] = {
        "cluster": full_name(snapshot.cluster),
        "mode": mode,
        "asks_who_calls": asks,
        "message": condition(snapshot.cluster, "Secured").get("message") or None,
        "bootstrap": (snapshot.cluster.get("status") or {}).get("bootstrap") or None,
    }
    names = ClusterNames(snapshot.name, snapshot.namespace)
    if asks:
        seen |= _doors(names, security)
    if mode == SecurityMode.MIGRATE.value:
        # The other port is in plaintext, and asks nobody.
        seen["bootstrap"] = f"{names.bootstrap_host}:{SECURE_PORT}"
    return {**seen, "rules": _rules(snapshot), "quotas": _quotas(snapshot), "gaps": _gaps(snapshot)}


def volume(seen: Json) -> Json:
    """What a pod needs to get in, as its `volumes` and `volumeMounts` name it."""
    token = {"audience": seen["audience"], "path": "token", "expirationSeconds": 3600}
    trust = {"name": str(seen["trust"]).partition("/")[2]}
    sources = [{"serviceAccountToken": token}, {"configMap": trust}]
    return {
        "volumes": [{"name": "penstock", "projected": {"sources": sources}}],
        "volumeMounts": [{"name": "penstock", "mountPath": str(MOUNT), "readOnly": True}],
    }


def _doors(names: ClusterNames, security: Json) -> dict[str, Any]:
    namespace = names.namespace
    return {
        "audience": names.audience,
        "trust": f"{namespace}/{names.trust}",
        "trust_key": TRUST_KEY,
        "admin": f"serviceaccount:{namespace}/{names.admin}",
        "viewer": f"serviceaccount:{namespace}/{names.viewer}",
        "issuers": [
            {"issuer": one["issuer"], "audience": one["audience"]}
            for one in security.get("oidc") or ()
        ],
    }


def _rules(snapshot: Snapshot) -> list[dict[str, object]]:
    """Of the cluster, then of groups, then of topics."""
    access = snapshot.document.access if snapshot.document is not None else None
    groups = dict(sorted(access.groups.items())) if access is not None else {}
    of = [
        (CLUSTER, access.rules if access is not None else ()),
        *((Resource(Kind.GROUP, name), rules) for name, rules in groups.items()),
        *(
            (Resource(Kind.TOPIC, name), topic.access)
            for name, topic in sorted(snapshot.topic_documents.items())
        ),
    ]
    return [rule_row(resource, rule) for resource, rules in of for rule in rules]


def _quotas(snapshot: Snapshot) -> list[dict[str, object]]:
    rules = snapshot.document.quotas.rules if snapshot.document is not None else ()
    return [quota_row(rule) for rule in rules]


def _gaps(snapshot: Snapshot) -> list[str]:
    """What could not be read."""
    if snapshot.document is None and not snapshot.gaps:
        return ["rules and quotas: the controllers have stored nothing yet"]
    return list(snapshot.gaps)
