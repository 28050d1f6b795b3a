"""Manifests and other files that a page shows: they are parsed, ours as the product parses them.

A page shows the part of a resource that it writes about: what is missing and must be there is
filled in, so that the reader of manifests judges only what stands on the page.
"""

import json
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, Final

import yaml

from penstock.core.manifest import ManifestError, parse_manifest
from penstock.core.manifest.parse import KINDS
from penstock.core.manifest.schema import API_VERSION

_NEEDED: Final[Mapping[str, dict[str, Any]]] = {
    "Cluster": {"brokers": 3},
    "Topic": {"cluster": "flights", "partitions": 1},
    "ConsumerGroup": {"cluster": "flights"},
}
"""What a spec must have."""


def problems(language: str, text: str) -> list[str]:
    """What is wrong with it, one line each."""
    try:
        _PARSERS[language](text)
    except ManifestError as error:
        return error.message.splitlines()
    except (yaml.YAMLError, ValueError) as error:
        return [f"is no {language}: {' '.join(str(error).split())}"]
    return []


def resources(text: str) -> list[dict[str, Any]]:
    """The resources of ours in YAML, complete. Raises yaml.YAMLError, ManifestError."""
    documents = [one for one in yaml.safe_load_all(text) if one is not None]
    found = [_completed(one) for one in documents if _is_ours(one)]
    if found:
        parse_manifest([*found, *_missing_clusters(found)], "the manifest")
    return found


def _missing_clusters(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What topics and groups name, and another page shows."""
    there = {one["metadata"]["name"] for one in found if one["kind"] == "Cluster"}
    specs = [one["spec"] for one in found if one["kind"] != "Cluster"]
    named = {spec.get("cluster") for spec in specs if isinstance(spec, dict)}
    return [
        _completed({"kind": "Cluster", "metadata": {"name": name}})
        for name in sorted(named - there, key=str)
    ]


def _is_ours(document: object) -> bool:
    if not isinstance(document, dict):
        return False
    version = str(document.get("apiVersion", API_VERSION))
    by_version = "apiVersion" in document and version.startswith("penstock.dev/")
    return by_version or ("apiVersion" not in document and document.get("kind") in KINDS)


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    needed = _NEEDED.get(str(document.get("kind")), {})
    spec = document.get("spec", {})
    return {
        "apiVersion": API_VERSION,
        "metadata": {"name": "flights"},
        **document,
        "spec": {**needed, **spec} if isinstance(spec, dict) else spec,
    }


_PARSERS: Final[Mapping[str, Callable[[str], object]]] = {
    "yaml": resources,
    "json": json.loads,
    "toml": tomllib.loads,
}
