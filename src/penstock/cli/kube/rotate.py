"""`kubectl penstock rotate-ca`: asks the operator for another CA, by an annotation.

Every id asks once. The operator makes the CA, and controllers put it in place of the old one.
"""

from datetime import UTC, datetime

from penstock.cli.kube.snapshot import condition, full_name, is_paused
from penstock.errors import MisuseError
from penstock.kubernetes.api import Api
from penstock.kubernetes.names import ROTATE_CA, ClusterNames
from penstock.kubernetes.resources import Json, path_of
from penstock.kubernetes.rotation import SETTLED, RotationState, rotation_of


def rotate_ca(api: Api, cluster: Json, *, dry_run: bool) -> Json:
    """What was asked for. Raises MisuseError if it cannot be done now, KubernetesError."""
    names = ClusterNames(cluster["metadata"]["name"], cluster["metadata"]["namespace"])
    _check(cluster)
    published = api.find(path_of("ConfigMap", names.namespace, names.trust))
    if published is None:
        raise MisuseError(
            f"{full_name(cluster)} has no ConfigMap {names.trust} yet: its controllers have not "
            "published a CA; try again once it is Ready"
        )
    state = rotation_of(published) or RotationState(SETTLED, names.authority, 0.0)
    asked = condition(cluster, "RotatingCA")
    if state.phase != SETTLED or asked.get("status") == "True":
        raise MisuseError(
            f"the CA of {full_name(cluster)} is being replaced already "
            f"({asked.get('message') or state.phase}); try again when that is over"
        )
    first, second = names.authorities
    current = second if state.secret == second.removeprefix(f"{names.cluster}-") else first
    request = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    if not dry_run:
        path = path_of("Cluster", names.namespace, names.cluster)
        api.merge(path, {"metadata": {"annotations": {ROTATE_CA: request}}})
    return {
        "cluster": full_name(cluster),
        "id": request,
        "secret": current,
        "newSecret": first if current == second else second,
        "dryRun": dry_run,
    }


def _check(cluster: Json) -> None:
    """Raises MisuseError."""
    name = full_name(cluster)
    mode = ((cluster.get("spec") or {}).get("security") or {}).get("mode")
    if mode != "Strict":
        raise MisuseError(
            f"{name} has no CA: spec.security.mode is {mode or 'not set'}, and only a Strict "
            "Cluster has one"
        )
    if is_paused(cluster):
        raise MisuseError(f"{name} is paused; resume it first: `kubectl penstock resume`")
