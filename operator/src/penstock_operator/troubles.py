"""Why containers of a pod do not run, in words of the scheduler, the kubelet or their own. Pure."""

from collections.abc import Mapping
from typing import Any, Final

_QUIET_REASONS: Final = frozenset({"ContainerCreating", "PodInitializing"})


def trouble_of(status: Mapping[str, Any], container: Mapping[str, Any]) -> str:
    """Why the container is not running, in the words of the scheduler, the kubelet or the
    container."""
    for each in status.get("conditions") or ():
        if each["type"] == "PodScheduled" and each["status"] == "False":
            return f"it cannot be scheduled: {each.get('message', '')}"
    return _failure(container)


def is_preparing(pod: Mapping[str, Any], container: Mapping[str, Any]) -> bool:
    """Whether the kubelet still makes its sandbox and volumes, or pulls images. `container`: its
    status, empty if there is none yet."""
    waiting = (container.get("state") or {}).get("waiting") or {}
    is_quiet = not container or waiting.get("reason") == "ContainerCreating"
    return is_quiet and bool(pod["spec"].get("nodeName"))


def beside(status: Mapping[str, Any], own: str) -> tuple[str, int]:
    """Which container that others put into the pod does not run, and how often it was restarted."""
    for key in ("initContainerStatuses", "containerStatuses"):
        for each in status.get(key) or ():
            ended = (each.get("state") or {}).get("terminated") or {}
            why = "" if each["name"] == own or ended.get("exitCode") == 0 else _failure(each)
            if why:
                return f"container {each['name']}: {why}", int(each.get("restartCount", 0))
    return "", 0


def _failure(container: Mapping[str, Any]) -> str:
    """Why a container does not run, in the words of the kubelet or its own; empty: it runs, or is
    about to."""
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason = waiting.get("reason", "")
    ended = (container.get("state") or {}).get("terminated") or (
        container.get("lastState") or {}
    ).get("terminated")
    if ended and reason in {"", "CrashLoopBackOff"} and not container.get("ready"):
        if not reason and not (container.get("state") or {}).get("terminated"):
            return ""  # it is running again
        lines = (ended.get("message") or "").strip().splitlines()
        last = lines[-1] if lines else ended.get("reason", "")
        return f"it exited with code {ended.get('exitCode')}: {last}"
    if reason and reason not in _QUIET_REASONS:
        return f"{reason}: {waiting.get('message', '')}".rstrip(": ")
    return ""
