"""A command of kubectl, held against what a cluster with our chart has.

    kubectl annotate cluster.penstock.dev/flights penstock.dev/forget-broker=4
            verb     kind, ours or Kubernetes'    key, one that our programs or the chart know

Names of objects are examples. Keys without `penstock.dev` are anybody's.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from penstock.kubernetes.names import GROUP, ClusterNames, trust_copy_label
from tools.snippets.shell import VARIABLE

ROOT: Final = Path(__file__).resolve().parents[2]
VERBS: Final = frozenset(
    (
        "annotate", "apply", "config", "cordon", "create", "delete", "describe", "drain", "edit",
        "exec", "explain", "get", "label", "logs", "patch", "port-forward", "replace", "rollout",
        "run", "scale", "set", "top", "uncordon", "version", "wait",
    )
)  # fmt: skip
_OF_KINDS: Final = frozenset(
    ("annotate", "delete", "describe", "edit", "explain", "get", "label", "patch", "scale", "wait")
)
"""Verbs whose first word says of what kind."""
_KINDS: Final = frozenset(
    (
        "configmap", "crd", "customresourcedefinition", "deployment", "event", "job", "lease",
        "namespace", "node", "persistentvolume", "persistentvolumeclaim", "pod",
        "poddisruptionbudget", "pvc", "role", "rolebinding", "secret", "service", "serviceaccount",
        "statefulset", "storageclass",
    )
)  # fmt: skip
"""Kubernetes' own, as far as pages name them; with an s as well."""
_VALUED: Final = frozenset(
    (
        "-n", "-l", "-o", "-p", "-f", "-c", "--namespace", "--context", "--kubeconfig",
        "--selector", "--field-selector", "--filename", "--output", "--patch", "--api-version",
        "--type", "--timeout",
    )
)  # fmt: skip
"""Options that take the next word."""
_SELECTS: Final = frozenset(("-l", "--selector"))
_KEY: Final = re.compile(rf"[\w.-]*\b{re.escape(GROUP)}/[\w-]+")
_CONSTANT: Final = re.compile(r'f"\{GROUP\}/([\w-]+)"')


def verb(words: list[str]) -> tuple[str, list[str]]:
    """And what follows; "" if there is none."""
    rest = list(words)
    while rest and rest[0].startswith("-"):
        rest = rest[2 if rest[0] in _VALUED else 1 :]
    return (rest[0], rest[1:]) if rest else ("", [])


def problem(words: list[str]) -> str:
    """What is wrong with the words after `kubectl`; "" if nothing is."""
    name, rest = verb(words)
    if name not in VERBS:
        return f"kubectl has no command {name}"
    objects, keys = _sorted(rest)
    wrong = [*_strange_keys(keys), *(_strange_kinds(objects) if name in _OF_KINDS else ())]
    if name == "explain":
        wrong = list(_strange_fields(objects))
    return wrong[0] if wrong else ""


def _sorted(words: list[str]) -> tuple[list[str], list[str]]:
    """Kinds and names; keys of annotations and labels."""
    objects, keys = [], []
    option = ""
    for word in words:
        if option:
            if option in _SELECTS:
                keys += [each.partition("=")[0] for each in word.split(",")]
            option = ""
        elif word.startswith("-"):
            option = word if word in _VALUED else ""
        elif "=" in word or word.endswith("-"):
            keys.append(word.partition("=")[0].removesuffix("-"))
        else:
            objects.append(word)
    return objects, keys


def _strange_kinds(objects: list[str]) -> Iterator[str]:
    """`kind name …`, or `kind/name kind/name …`; no words: the kind is in a file."""
    for each in objects[: None if "/" in "".join(objects[:1]) else 1]:
        for kind in each.partition("/")[0].split(","):
            if {kind, kind.removesuffix("s")}.isdisjoint({*_KINDS, *_ours(), VARIABLE}):
                yield f"there is no kind {kind}; tools/snippets/kubectl.py lists Kubernetes' own"
    if objects[:1] in (["crd"], ["crds"]):
        for name in objects[1:]:
            if name not in _ours():
                yield f"there is no CRD {name}"


def _strange_fields(objects: list[str]) -> Iterator[str]:
    for each in objects:
        kind, *path = each.split(".")
        if kind not in _ours():
            yield f"there is no kind {kind} of ours"
            continue
        at = _ours()[kind]["versions"][0]["schema"]["openAPIV3Schema"]
        for name in path:
            at = at.get("items", at).get("properties", {}).get(name)
            if at is None:
                yield f"{each}: there is no field {name}"
                break


def _strange_keys(keys: list[str]) -> Iterator[str]:
    for key in keys:
        if _KEY.fullmatch(key) and key not in known_keys() and not _is_copy_label(key):
            yield f"nothing reads an annotation or label {key}"


def _is_copy_label(key: str) -> bool:
    """`<cluster>.<namespace>.trust.penstock.dev/copy`"""
    cluster, namespace, *_ = [*key.split("."), ""]
    return key == trust_copy_label(ClusterNames(cluster, namespace))


@cache
def known_keys() -> frozenset[str]:
    """Annotations and labels with our prefix, of programs and the chart."""
    found = set()
    for folder in ("src", "operator/src", "broker_image/src"):
        for path in (ROOT / folder).rglob("*.py"):
            found |= {f"{GROUP}/{name}" for name in _CONSTANT.findall(path.read_text())}
    for path in (ROOT / "charts" / "penstock" / "templates").iterdir():
        found |= {key for key in _KEY.findall(path.read_text()) if not key.endswith("/v")}
    return frozenset(found)


@cache
def _ours() -> dict[str, Any]:
    """Our CRDs' specs, by every name that kubectl takes for one."""
    found: dict[str, Any] = {}
    for path in (ROOT / "crds").glob("*.yaml"):
        spec = yaml.safe_load(path.read_text())["spec"]
        names = spec["names"]
        for name in (names["plural"], names["singular"]):
            found |= {name: spec, f"{name}.{GROUP}": spec}
        for name in (*names.get("shortNames", ()), *names.get("categories", ())):
            found[name] = spec
    return found
