"""The support bundle: everything that helpers need to see, in one zip file.

    Snapshot, logs, metrics, cluster describe ──redact──▶ FILE.zip, and a list of what is inside

Secrets are never read. Everything else goes through `redact` before it is written. What cannot be
collected becomes a line in errors.txt: a broken cluster must always produce a bundle.
"""

import json
import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

from penstock import __version__
from penstock.cli.kube.reach import open_admin
from penstock.cli.kube.redact import redact, redact_text
from penstock.cli.kube.snapshot import Snapshot, full_name, name_of
from penstock.cli.kube.status import describe, phase
from penstock.cli.kube.why import explain
from penstock.errors import PenstockError
from penstock.kubernetes.api import Api, Timeouts
from penstock.kubernetes.resources import Json, path_of

METRICS_PORT: Final = 9404
DESCRIBE_MS: Final = 5_000
LOG_BYTES_MAX: Final = 20 * 1024 * 1024
TEXT_TIMEOUTS: Final = Timeouts(connect_s=5.0, total_s=300.0, silence_s=30.0)
"""A large log over a slow line takes longer than any object."""

Entry = tuple[str, str]
"""(name in the zip, text)."""


def write_report(api: Api, snapshot: Snapshot, file: Path, tail_lines: int) -> list[Json]:
    """Writes the bundle; returns a row per file in it. Raises OSError for the file itself."""
    errors: list[str] = list(snapshot.gaps)
    rows: list[Json] = []
    with (
        open(file, "xb", opener=_private) as target,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as bundle,
    ):
        for name, text in _entries(api, snapshot, tail_lines, errors):
            bundle.writestr(name, text)
            rows.append({"file": name, "bytes": len(text.encode())})
        if errors:
            text = redact_text("\n".join(dict.fromkeys(errors)) + "\n")
            bundle.writestr("errors.txt", text)
            rows.append({"file": "errors.txt", "bytes": len(text.encode())})
    return rows


def _private(path: str, flags: int) -> int:
    """Logs can tell what only whoever may read them should know."""
    return os.open(path, flags, 0o600)


def _entries(api: Api, snapshot: Snapshot, tail_lines: int, errors: list[str]) -> Iterator[Entry]:
    yield "about.json", _dump(_about(api, snapshot, errors))
    yield "status.json", _dump(describe(snapshot))
    yield "why.json", _dump(explain(snapshot).to_dict())
    yield from _objects(snapshot)
    yield "describe-cluster.json", _dump(_try(lambda: _ask_brokers(api, snapshot), errors) or {})
    for pod in (*snapshot.pods, *snapshot.operator.pods):
        yield from _logs(api, pod, tail_lines, errors)
        if pod in snapshot.pods:
            text = _try(partial(_metrics, api, pod), errors)
            if text:
                yield f"metrics/{name_of(pod)}.txt", redact_text(text)


def _about(api: Api, snapshot: Snapshot, errors: list[str]) -> Json:
    version = _try(lambda: api.request("GET", "/version"), errors) or {}
    return {
        "cluster": full_name(snapshot.cluster),
        "taken_at": snapshot.now.isoformat(),
        "penstock_cli": __version__,
        "kubernetes": version.get("gitVersion"),
    }


def _objects(snapshot: Snapshot) -> Iterator[Entry]:
    groups: dict[str, tuple[Json, ...]] = {
        "clusters": (snapshot.cluster,),
        "topics": snapshot.topics,
        "consumer-groups": snapshot.groups,
        "pods": snapshot.pods,
        "statefulsets": snapshot.statefulsets,
        "deployments": snapshot.deployments,
        "volume-claims": snapshot.claims,
        "metadata": snapshot.config_maps,
        "leases": (snapshot.lease,) if snapshot.lease else (),
        "operator/deployments": snapshot.operator.deployments,
        "operator/pods": snapshot.operator.pods,
        "operator/leases": snapshot.operator.leases,
    }
    for group, things in groups.items():
        for thing in things:
            # There may be several operators, each in a namespace of its own.
            of = f"{thing['metadata']['namespace']}/" if group.startswith("operator/") else ""
            yield f"objects/{group}/{of}{name_of(thing)}.json", _dump(thing)
    lines = [json.dumps(redact(event), ensure_ascii=False) for event in snapshot.events]
    yield "objects/events.jsonl", "".join(f"{line}\n" for line in lines)


def _logs(api: Api, pod: Json, tail_lines: int, errors: list[str]) -> Iterator[Entry]:
    where = path_of("Pod", pod["metadata"]["namespace"], name_of(pod))
    spec = pod["spec"]
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        name = container["name"]
        for previous in (False, True):
            if previous and not _has_ended_before(pod, name):
                continue
            query = {"container": name, "tailLines": tail_lines, "limitBytes": LOG_BYTES_MAX}
            ask = partial(
                api.text, f"{where}/log", timeouts=TEXT_TIMEOUTS, previous=previous, **query
            )
            text = _try(ask, errors) if phase(pod) != "Pending" else None
            if text:
                suffix = ".previous" if previous else ""
                yield f"logs/{name_of(pod)}/{name}{suffix}.log", redact_text(text)


def _has_ended_before(pod: Json, container: str) -> bool:
    status = pod.get("status") or {}
    states = [
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ]
    return any(one["name"] == container and one.get("restartCount") for one in states)


def _metrics(api: Api, pod: Json) -> str | None:
    """Through the API server's proxy, which needs no forward."""
    if phase(pod) != "Running":
        return None
    where = path_of("Pod", pod["metadata"]["namespace"], name_of(pod))
    return api.text(f"{where}:{METRICS_PORT}/proxy/metrics", timeouts=TEXT_TIMEOUTS)


def _ask_brokers(api: Api, snapshot: Snapshot) -> Any:
    with open_admin(api, snapshot.cluster, only_look=True, timeout_ms=DESCRIBE_MS) as admin:
        return asdict(admin.describe_cluster())


def _try(ask: Callable[[], Any], errors: list[str]) -> Any:
    """The answer, or None and a line in `errors`."""
    try:
        return ask()
    except PenstockError as error:
        errors.append(error.message)
        return None


def _dump(thing: Any) -> str:
    return json.dumps(redact(thing), indent=1, ensure_ascii=False, default=str) + "\n"
