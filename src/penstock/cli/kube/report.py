"""What is in the support bundle of a Cluster on Kubernetes; `penstock.cli.bundle` writes it.

    Snapshot, logs, metrics, cluster describe ──redact──▶ entries

Secrets are never read. Everything else goes through `redact`.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

from penstock import __version__
from penstock.cli.at_once import at_once
from penstock.cli.bundle import Entry, attempt, dump, write_bundle
from penstock.cli.kube.reach import open_admin
from penstock.cli.kube.snapshot import Snapshot, full_name, name_of
from penstock.cli.kube.status import describe, phase
from penstock.cli.kube.why import explain
from penstock.cli.redact import redact, redact_text
from penstock.kubernetes.api import Api, Timeouts
from penstock.kubernetes.resources import Json, path_of

METRICS_PORT: Final = 9404
DESCRIBE_MS: Final = 5_000
LOG_BYTES_MAX: Final = 20 * 1024 * 1024
PODS_AT_ONCE: Final = 4
"""Whose logs are read at the same time, and kept in memory meanwhile: a node that is dead takes
half a minute for each."""
TEXT_TIMEOUTS: Final = Timeouts(connect_s=5.0, total_s=300.0, silence_s=30.0)
"""A large log over a slow line takes longer than any object."""


def write_report(api: Api, snapshot: Snapshot, file: Path, tail_lines: int) -> list[Json]:
    """Writes the bundle; returns a row per file in it. Raises OSError for the file itself."""
    errors: list[str] = list(snapshot.gaps)
    return write_bundle(file, _entries(api, snapshot, tail_lines, errors), errors)


def _entries(api: Api, snapshot: Snapshot, tail_lines: int, errors: list[str]) -> Iterator[Entry]:
    yield "about.json", dump(_about(api, snapshot, errors))
    yield "status.json", dump(describe(snapshot))
    yield "why.json", dump(explain(snapshot).to_dict())
    yield from _objects(snapshot)
    yield "describe-cluster.json", dump(attempt(lambda: _ask_brokers(api, snapshot), errors) or {})
    pods = (*snapshot.pods, *snapshot.operator.pods)
    for first in range(0, len(pods), PODS_AT_ONCE):
        some = pods[first : first + PODS_AT_ONCE]
        lines: list[list[str]] = [[] for _ in some]
        asks = [
            partial(_of_pod, api, pod, tail_lines, each, has_metrics=pod in snapshot.pods)
            for pod, each in zip(some, lines, strict=True)
        ]
        for found in at_once(asks):
            yield from found
        errors += chain.from_iterable(lines)


def _of_pod(
    api: Api, pod: Json, tail_lines: int, errors: list[str], *, has_metrics: bool
) -> list[Entry]:
    found = list(_logs(api, pod, tail_lines, errors))
    text = attempt(partial(_metrics, api, pod), errors) if has_metrics else None
    if text:
        found.append((f"metrics/{name_of(pod)}.txt", redact_text(text)))
    return found


def _about(api: Api, snapshot: Snapshot, errors: list[str]) -> Json:
    version = attempt(lambda: api.request("GET", "/version"), errors) or {}
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
            yield f"objects/{group}/{of}{name_of(thing)}.json", dump(thing)
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
            text = attempt(ask, errors) if phase(pod) != "Pending" else None
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
