"""The corpus of manifests in tests/crds/corpus, and a judge for the structural part of a schema.

    good/*.yaml       accepted, by local mode and by the API server
    bad/*.yaml        refused by both; the comments at the top say with which words
    changes/*.yaml    the first document is applied, then the second: `# accepted` or refused

A comment `# local: words`, `# api: words` or `# both: words` names a part of the message.
"""

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
CORPUS = ROOT / "tests" / "crds" / "corpus"
PLURALS = {"Cluster": "clusters", "Topic": "topics", "ConsumerGroup": "consumergroups"}


@dataclass(frozen=True)
class Case:
    """A file: its documents, and what is said about them (empty = nothing wrong)."""

    name: str
    documents: tuple[dict[str, Any], ...]
    local: str
    api: str


def cases(folder: str) -> list[Case]:
    found = [_read(path) for path in sorted((CORPUS / folder).glob("*.yaml"))]
    assert found, f"no files in {CORPUS / folder}"
    return found


def _read(path: Path) -> Case:
    text = path.read_text()
    said: dict[str, str] = dict(re.findall(r"^# (both|local|api): (.+)$", text, re.MULTILINE))
    documents = tuple(yaml.safe_load_all(text))
    both = said.get("both", "")
    return Case(path.stem, documents, said.get("local", both), said.get("api", both))


@functools.cache
def crd(kind: str) -> dict[str, Any]:
    """The definition of a kind, from crds/."""
    found: dict[str, Any] = yaml.safe_load((ROOT / "crds" / f"{PLURALS[kind]}.yaml").read_text())
    return found


def schema(kind: str) -> dict[str, Any]:
    """Its OpenAPI schema."""
    root: dict[str, Any] = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return root


_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
}


def structural_problems(shape: dict[str, Any], value: Any, path: str = "") -> list[str]:
    """What an API server with strict field validation refuses by the schema alone, rules aside.

    Null counts as absent, as there.
    """
    if shape.get("x-kubernetes-int-or-string"):
        fits = isinstance(value, int | str) and not isinstance(value, bool)
    else:
        fits = isinstance(value, _TYPES[shape["type"]])
        fits = fits and not (shape["type"] == "integer" and isinstance(value, bool))
    if not fits:
        return [f"{path}: {value!r} has the wrong type"]
    problems = [f"{path}: {text}" for text in _limits(shape, value)]
    if isinstance(value, dict):
        problems += _object(shape, value, path)
    if isinstance(value, list):
        for number, item in enumerate(value):
            problems += structural_problems(shape["items"], item, f"{path}[{number}]")
    return problems


def _limits(shape: dict[str, Any], value: Any) -> list[str]:
    number = isinstance(value, int)
    checks = (
        ("minimum", number, lambda limit: value >= limit),
        ("maximum", number, lambda limit: value <= limit),
        ("maxLength", isinstance(value, str), lambda limit: len(value) <= limit),
        ("pattern", isinstance(value, str), lambda limit: re.search(limit, value) is not None),
        ("minItems", isinstance(value, list), lambda limit: len(value) >= limit),
        ("maxItems", isinstance(value, list), lambda limit: len(value) <= limit),
        ("maxProperties", isinstance(value, dict), lambda limit: len(value) <= limit),
        ("enum", True, lambda limit: value in limit),
    )
    return [
        f"{value!r} against {name} {shape[name]!r}"
        for name, applies, holds in checks
        if applies and name in shape and not holds(shape[name])
    ]


def _object(shape: dict[str, Any], value: dict[str, Any], path: str) -> list[str]:
    properties: dict[str, Any] = shape.get("properties", {})
    given = {name: nested for name, nested in value.items() if nested is not None}
    problems = [
        f"{path}: {name} is missing" for name in shape.get("required", ()) if name not in given
    ]
    for name, nested in given.items():
        here = f"{path}.{name}"
        if name in properties:
            problems += structural_problems(properties[name], nested, here)
        elif "additionalProperties" in shape:
            problems += structural_problems(shape["additionalProperties"], nested, here)
        elif path not in ("", ".metadata") and not shape.get(
            "x-kubernetes-preserve-unknown-fields"
        ):
            problems.append(f"{here} is unknown")
    return problems
