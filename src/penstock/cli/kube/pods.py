"""Why a pod is not running: scheduling, images, crashes, probes. Pure.

    not scheduled ─▶ container waits ─▶ container died ─▶ runs, not ready

Only the first that applies is reported: the later ones follow from it.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from penstock.cli.kube.snapshot import condition, name_of, parse_time
from penstock.cli.kube.status import age, containers, is_leaving, is_pod_ready
from penstock.cli.kube.words import warnings_about
from penstock.kubernetes.resources import Json
from penstock.views.findings import Finding

_IMAGE: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
    }
)
_WORDS: Final = 400


def pod_findings(now: datetime, pod: Json, events: Sequence[Json]) -> Iterator[Finding]:
    """Nothing for a pod that is ready."""
    if is_leaving(pod):
        yield from _leaving(now, pod)
    elif not is_pod_ready(pod):
        found = (
            _unscheduled(now, pod)
            or _waiting(now, pod)
            or _crashed(now, pod)
            or _not_ready(now, pod, warnings_about(events, "Pod", name_of(pod)))
        )
        yield found


def _leaving(now: datetime, pod: Json) -> Iterator[Finding]:
    end = parse_time(pod["metadata"].get("deletionTimestamp"))
    if end is not None and end < now:
        node = pod["spec"].get("nodeName")
        yield Finding(
            f"pod {name_of(pod)}",
            "pod-stuck",
            f"should have terminated but has not: node {node} does not confirm it",
            since=age(now, pod["metadata"]["deletionTimestamp"]),
            do=f"is node {node} alive? Only if it will never come back: kubectl delete pod "
            f"{name_of(pod)} --force",
        )


def _unscheduled(now: datetime, pod: Json) -> Finding | None:
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") != "False":
        return None
    return Finding(
        f"pod {name_of(pod)}",
        "pod-unscheduled",
        f"is not scheduled: {scheduled.get('message') or scheduled.get('reason')}",
        since=age(now, scheduled.get("lastTransitionTime")),
        do="add a suitable node to Kubernetes, or request less in the Cluster's spec",
    )


def _waiting(now: datetime, pod: Json) -> Finding | None:
    for container in containers(pod):
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason")
        if reason in (None, "ContainerCreating", "PodInitializing", "CrashLoopBackOff"):
            continue
        is_image = reason in _IMAGE
        what = f"cannot pull image {container.get('image')}" if is_image else "cannot be started"
        do = (
            "check the image's name, and that the node is allowed to pull it (pull secret, "
            "registry)"
        )
        return Finding(
            f"pod {name_of(pod)}",
            "image" if is_image else "container-config",
            f"{what} ({reason})",
            since=_started(now, pod),
            evidence=(_short(waiting.get("message")),) if waiting.get("message") else (),
            do=do
            if is_image
            else (
                "run kubectl describe on the pod: something that it mounts or uses does not exist"
            ),
        )
    return None


def _crashed(now: datetime, pod: Json) -> Finding | None:
    for container in containers(pod):
        state = container.get("state") or {}
        waiting = state.get("waiting") or {}
        ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated")
        running = "running" in state
        if ended is None or (running and not container.get("restartCount")):
            continue
        if ended.get("exitCode") == 0 and not waiting:
            continue  # an init container that has done its work
        count = container.get("restartCount") or 0
        code, reason = ended.get("exitCode"), ended.get("reason")
        again = "is restarting again and again" if waiting else "is restarting"
        told = ended.get("message")
        return Finding(
            f"pod {name_of(pod)}",
            "crash",
            f"crashes: container {container['name']} ended with {code} ({reason}) and {again}: "
            f"{count} restarts",
            since=age(now, ended.get("finishedAt")),
            evidence=(_short(told),) if told else (),
            do="raise resources.limits.memory in the Cluster's spec"
            if reason == "OOMKilled"
            else f"kubectl logs {name_of(pod)} --previous",
        )
    return None


def _not_ready(now: datetime, pod: Json, warnings: tuple[str, ...]) -> Finding:
    ready = condition(pod, "Ready")
    creating = any("waiting" in (one.get("state") or {}) for one in containers(pod))
    is_new = not containers(pod) or creating
    return Finding(
        f"pod {name_of(pod)}",
        "pod-starting" if is_new else "pod-not-ready",
        "is starting" if is_new else "is running, but not ready: its health is not SERVING",
        since=age(now, ready.get("lastTransitionTime") or pod["metadata"].get("creationTimestamp")),
        evidence=warnings,
        do=None if is_new else f"kubectl logs {name_of(pod)}",
    )


def _started(now: datetime, pod: Json) -> str | None:
    return age(now, (pod.get("status") or {}).get("startTime"))


def _short(text: object) -> str:
    words = " ".join(str(text).split())
    return words if len(words) <= _WORDS else "…" + words[-_WORDS:]
