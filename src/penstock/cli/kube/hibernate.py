"""`kubectl penstock hibernate | wake`: changes `spec.hibernate` of a Cluster, and can wait for it.

The operator does it: see `penstock_operator.plan.hibernate`.
"""

import time
from collections.abc import Callable
from typing import Final

from penstock.cli.kube.snapshot import condition, full_name, is_paused, refuse_deleted
from penstock.cli.kube.status import is_ready
from penstock.errors import ClusterError, ErrorCode, MisuseError
from penstock.kubernetes.api import Api
from penstock.kubernetes.resources import Json, path_of

WAIT_S: Final = 1_800.0
"""Pods of a large cluster take their time to stop, and images to be pulled again."""
_POLL_S: Final = 1.0


def change(api: Api, cluster: Json, *, hibernate: bool, dry_run: bool) -> Json:
    """What the Cluster is told, and how it is now. Raises MisuseError if it is paused."""
    name = full_name(cluster)
    if is_paused(cluster):
        raise MisuseError(f"{name} is paused; resume it first: `kubectl penstock resume`")
    was = bool((cluster.get("spec") or {}).get("hibernate", False))
    metadata = cluster["metadata"]
    path = path_of("Cluster", metadata["namespace"], metadata["name"])
    generation = metadata.get("generation", 1)
    if was != hibernate and not dry_run:
        made = api.merge(path, {"spec": {"hibernate": hibernate}})
        generation = made["metadata"].get("generation", generation)
    return {
        "cluster": name,
        "hibernate": hibernate,
        "changed": was != hibernate,
        "generation": generation,
        "state": _state(cluster),
        "dryRun": dry_run,
    }


def wait(
    api: Api, cluster: Json, asked: Json, tell: Callable[[str], None] = lambda _: None
) -> Json:
    """Until the Cluster is asleep, or Ready, as `asked`; `tell` is told what it waits for.

    Raises ClusterError if it stays awake, or if it takes longer than half an hour, MisuseError if
    it is being deleted.
    """
    metadata = cluster["metadata"]
    path = path_of("Cluster", metadata["namespace"], metadata["name"])
    until, said = time.monotonic() + WAIT_S, ""
    while True:
        seen = api.find(path)
        if seen is None:
            raise ClusterError(f"{asked['cluster']} was deleted", ErrorCode.INVALID_REQUEST)
        refuse_deleted(seen)
        status: Json = seen.get("status") or {}
        if status.get("observedGeneration", 0) >= asked["generation"]:
            if _is_done(seen, hibernate=asked["hibernate"]):
                return {**asked, "state": _state(seen)}
            stalled = condition(seen, "Stalled")
            if asked["hibernate"] and stalled.get("reason") == "HibernateBlocked":
                raise ClusterError(
                    f"{asked['cluster']} stays awake: {stalled.get('message', '')}",
                    ErrorCode.HIBERNATING,
                )
        if status.get("message", "") != said:
            said = status.get("message", "")
            tell(said)
        if time.monotonic() > until:
            raise ClusterError(
                f"{asked['cluster']} is not done after {WAIT_S / 60:.0f} min: {said}; it goes on; "
                "to see how far it is: `kubectl penstock why`",
                ErrorCode.REQUEST_TIMED_OUT,
            )
        time.sleep(_POLL_S)


def _state(cluster: Json) -> str:
    """`Hibernated`, `Waking`, …; `Awake`."""
    row: Json = (cluster.get("status") or {}).get("hibernation") or {}
    return str(row.get("state") or "Awake")


def _is_done(cluster: Json, *, hibernate: bool) -> bool:
    if hibernate:
        return _state(cluster) == "Hibernated"
    return _state(cluster) == "Awake" and is_ready(cluster)
