"""Writes the CRDs: `python -m tools.crds` (make crds), `python -m tools.crds --check`.

    rows (penstock.core.manifest) ──schema──┐
    rules (tools.crds_rules) ───────────────┼──▶ crds/<plural>.yaml, and a copy for the chart
    printer columns, names (here) ──────────┘    and the page of all fields, docs/resources.md

Nobody edits the results: `--check` fails when they are not what the tables say.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from penstock.core.manifest.rows import (
    RESOURCE_PATTERN,
    Field,
    Kind,
    has_default,
)
from penstock.core.manifest.schema import (
    CLUSTER_SPEC,
    GROUP,
    TOPIC_SPEC,
    VERSION,
)
from penstock.core.manifest.schema_groups import CONSUMER_GROUP_SPEC
from penstock.core.manifest.status import (
    CLUSTER_STATUS,
    CONSUMER_GROUP_STATUS,
    INITIAL_CONDITION,
    TOPIC_STATUS,
)
from penstock.core.quantities import QUANTITY_PATTERN
from tools.crds_reference import reference
from tools.crds_rules import Rules, rules_of

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (ROOT / "crds", ROOT / "charts" / "penstock" / "files" / "crds")
"""The second is a copy, because a chart can only read files of its own."""
HEADER = (
    "# Written by `make crds` from the rows in penstock.core.manifest; changes here are lost.\n"
)
INT32_MAX = 2**31 - 1
Schema = dict[str, Any]
READY = '.status.conditions[?(@.type=="Ready")].status'
READY_MESSAGE = '.status.conditions[?(@.type=="Ready")].message'


@dataclass(frozen=True)
class Column:
    """A column of `kubectl get`; wide ones only with `-o wide`."""

    name: str
    path: str
    kind: str = "string"
    wide: bool = False
    doc: str = ""

    def to_yaml(self) -> dict[str, Any]:
        column: dict[str, Any] = {"name": self.name, "type": self.kind, "jsonPath": self.path}
        if self.doc:
            column["description"] = self.doc
        if self.wide:
            column["priority"] = 1
        return column


AGE = Column("Age", ".metadata.creationTimestamp", "date")


@dataclass(frozen=True)
class Resource:
    """What a CRD says beside its schema."""

    kind: str
    plural: str
    short: str
    doc: str
    spec: tuple[Field, ...]
    status: tuple[Field, ...]
    columns: tuple[Column, ...]
    scale: bool = False


RESOURCES = (
    Resource(
        kind="Cluster",
        plural="clusters",
        short="pcl",
        doc="A Penstock cluster: brokers that store topics, and controllers that coordinate them.",
        spec=CLUSTER_SPEC,
        status=CLUSTER_STATUS,
        columns=(
            Column("Ready", READY, doc="Whether every broker serves with the current spec."),
            Column("Brokers", ".status.brokers.summary", doc="Ready and wanted brokers."),
            Column("Phase", ".status.phase", doc="Phase of the Cluster."),
            Column("Moves", ".status.moves.summary", wide=True, doc="Replicas that move."),
            Column("Message", ".status.message", wide=True, doc="What it is waiting for."),
            Column("Bootstrap", ".status.bootstrap", wide=True, doc="What clients connect to."),
            AGE,
        ),
        scale=True,
    ),
    Resource(
        kind="Topic",
        plural="topics",
        short="pt",
        doc="A topic of a Cluster: partitions of records, each kept by several brokers.",
        spec=TOPIC_SPEC,
        status=TOPIC_STATUS,
        columns=(
            Column("Cluster", ".spec.cluster", doc="The Cluster of the topic."),
            Column("Partitions", ".status.partitions", "integer", doc="Partitions it has."),
            Column("Replicas", ".status.replicas", "integer", doc="Copies of each partition."),
            Column("Ready", READY, doc="Whether the topic matches its spec."),
            Column("Message", READY_MESSAGE, doc="What it is waiting for."),
            AGE,
        ),
    ),
    Resource(
        kind="ConsumerGroup",
        plural="consumergroups",
        short="pcg",
        doc="A consumer group of a Cluster: its members, its lag, and one-shot offset resets.",
        spec=CONSUMER_GROUP_SPEC,
        status=CONSUMER_GROUP_STATUS,
        columns=(
            Column("Cluster", ".spec.cluster", doc="The Cluster of the group."),
            Column("State", ".status.state", doc="State of the group."),
            Column("Members", ".status.members", "integer", doc="Members that heartbeat."),
            Column("Lag", ".status.lag.records", "integer", doc="Records not yet committed."),
            Column("Lag-Seconds", ".status.lag.seconds", "integer", wide=True, doc="Lag in time."),
            Column("Ready", READY, doc="Whether the group matches its spec."),
            AGE,
        ),
    ),
)


def schema_of(row: Field, path: tuple[str, ...], rules: Rules) -> Schema:
    """The structural schema of one row, with what is nested in it and the rules of its path."""
    schema: Schema = {"description": row.doc, **_typed(row, path, rules)}
    if row.default is not None:
        schema["default"] = row.default
    elif has_default(row):
        schema["default"] = defaults(row.fields)
    if path in rules:
        schema["x-kubernetes-validations"] = rules[path]
    return schema


def defaults(rows: tuple[Field, ...]) -> Schema:
    """What an empty mapping comes to. Complete, because rules are tried on a default as it is."""
    return {
        row.name: defaults(row.fields) if row.default is None else row.default
        for row in rows
        if has_default(row)
    }


def _typed(row: Field, path: tuple[str, ...], rules: Rules) -> Schema:
    match row.kind:
        case Kind.OBJECT:
            return _object(row.fields, path, rules)
        case Kind.OBJECTS:
            items = _object(row.fields, (*path, "*"), rules)
            if (*path, "*") in rules:
                items["x-kubernetes-validations"] = rules[*path, "*"]
            if not row.key:
                return {**_list(row, items), "x-kubernetes-list-type": "atomic"}
            return {
                **_list(row, items),
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": [row.key],
            }
        case Kind.SETTINGS | Kind.LABELS | Kind.QUANTITIES:
            values = _ITEMS[row.kind](row)
            return {
                "type": "object",
                "maxProperties": row.max_items,
                "additionalProperties": values,
            }
        case Kind.TEXTS | Kind.OPAQUES:
            return {**_list(row, _ITEMS[row.kind](row)), "x-kubernetes-list-type": "atomic"}
    return _SCALARS[row.kind](row)


def _integer(row: Field) -> Schema:
    small = row.maximum is not None and row.maximum <= INT32_MAX
    schema: Schema = {"type": "integer", "format": "int32" if small else "int64"}
    if row.minimum is not None:
        schema["minimum"] = row.minimum
    if row.maximum is not None:
        schema["maximum"] = row.maximum
    return schema


def _limits(row: Field) -> Schema:
    schema: Schema = {"maxLength": row.max_length}
    if row.pattern is not None:
        schema["pattern"] = f"^({row.pattern})$"
    if row.choices:
        schema = {"enum": list(row.choices)}
    return schema


def _list(row: Field, items: Schema) -> Schema:
    least = {"minItems": row.min_items} if row.min_items else {}
    return {"type": "array", **least, "maxItems": row.max_items, "items": items}


def _object(rows: tuple[Field, ...], path: tuple[str, ...], rules: Rules) -> Schema:
    schema: Schema = {"type": "object"}
    required = [row.name for row in rows if row.required]
    if required:
        schema["required"] = required
    schema["properties"] = {row.name: schema_of(row, (*path, row.name), rules) for row in rows}
    return schema


INT_OR_STRING: Schema = {"x-kubernetes-int-or-string": True}
_ITEMS: dict[Kind, Callable[[Field], Schema]] = {
    Kind.SETTINGS: lambda _: INT_OR_STRING,
    Kind.QUANTITIES: lambda _: {
        **INT_OR_STRING,
        "minimum": 0,
        "pattern": f"^({RESOURCE_PATTERN})$",
    },
    Kind.LABELS: lambda row: {"type": "string", "maxLength": row.max_length},
    Kind.TEXTS: lambda row: {"type": "string", **_limits(row)},
    Kind.OPAQUES: lambda _: {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
}
"""What lists and mappings hold."""
_SCALARS: dict[Kind, Callable[[Field], Schema]] = {
    Kind.INTEGER: _integer,
    Kind.BOOLEAN: lambda _: {"type": "boolean"},
    Kind.TEXT: lambda row: {"type": "string", **_limits(row)},
    Kind.TIME: lambda _: {"type": "string", "format": "date-time"},
    Kind.SCALAR: lambda row: {
        **INT_OR_STRING,
        **_limits(row),
        **({} if row.minimum is None else {"minimum": row.minimum}),
    },
    Kind.QUANTITY: lambda row: {
        **INT_OR_STRING,
        "maxLength": row.max_length,
        "minimum": 1,
        "pattern": f"^({QUANTITY_PATTERN})$",
    },
}


def crd(resource: Resource) -> dict[str, Any]:
    """The CustomResourceDefinition of one kind."""
    subresources: dict[str, Any] = {"status": {}}
    if resource.scale:
        subresources["scale"] = {
            "specReplicasPath": ".spec.brokers",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{resource.plural}.{GROUP}",
            # Helm must never delete it: with the definition go all objects, and their data.
            "annotations": {"helm.sh/resource-policy": "keep"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": resource.kind.lower(),
                "shortNames": [resource.short],
                "categories": ["penstock"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": subresources,
                    "additionalPrinterColumns": [column.to_yaml() for column in resource.columns],
                    "schema": {"openAPIV3Schema": _root(resource)},
                }
            ],
        },
    }


def _root(resource: Resource) -> Schema:
    rules = rules_of(resource.kind, resource.spec)
    spec: Schema = {"description": f"The desired state of the {resource.kind}."}
    spec |= _object(resource.spec, ("spec",), rules)
    required = [row.name for row in resource.spec if row.required]
    if not required:
        spec["default"] = defaults(resource.spec)
    if ("spec",) in rules:
        spec["x-kubernetes-validations"] = rules["spec",]
    status: Schema = {"description": "The state that the operator observed last."}
    status |= _object(resource.status, ("status",), {})
    # An object says that it waits from the first second on, not only once the operator has come.
    status["default"] = {"observedGeneration": 0, "conditions": [INITIAL_CONDITION]}
    status["properties"]["conditions"]["default"] = [INITIAL_CONDITION]
    root: Schema = {"description": resource.doc, "type": "object"}
    if required:
        root["required"] = ["spec"]
    root["properties"] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": spec,
        "status": status,
    }
    if () in rules:
        root["x-kubernetes-validations"] = rules[()]
    return root


class _Dumper(yaml.SafeDumper):
    """Lists are indented and nothing is an alias, as people write YAML for Kubernetes."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, False)


def rendered() -> dict[Path, str]:
    """Every file with its text."""
    files = {}
    for resource in RESOURCES:
        body = yaml.dump(crd(resource), Dumper=_Dumper, sort_keys=False, width=100)
        for folder in FOLDERS:
            files[folder / f"{resource.plural}.yaml"] = HEADER + body
    files[ROOT / "docs" / "resources.md"] = reference(
        [(each.kind, each.doc, each.spec, each.status) for each in RESOURCES]
    )
    return files


def main(arguments: list[str]) -> int:
    """Writes the files, or with `--check` answers 1 when one is not what it should be."""
    stale = []
    for path, wanted in rendered().items():
        if path.is_file() and path.read_text() == wanted:
            continue
        stale.append(path.relative_to(ROOT).as_posix())
        if "--check" not in arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted)
    if stale and "--check" in arguments:
        print(f"not what the tables say: {', '.join(stale)}; run make crds", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
