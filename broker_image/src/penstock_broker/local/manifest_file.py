"""Turns YAML text into a `Manifest`: the only code that opens manifests or parses YAML.

Stricter than YAML itself: a key given twice is an error, instead of the last one winning.
`penstock.core.manifest` checks what the documents mean, and reports all problems at once.
"""

import sys
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from penstock.core.manifest import Cluster, Manifest, parse_manifest
from penstock.core.topic import DELETION_PROTECTION
from penstock.errors import ClusterError, ErrorCode, MisuseError

MANIFEST_BYTES_MAX = 8 * 1024 * 1024
DEFAULT_NAME = "local"
_DEFAULT = {
    "apiVersion": "penstock.dev/v1alpha1",
    "kind": "Cluster",
    "spec": {
        "brokers": 3,
        "config": {"default.replication.factor": 3, "min.insync.replicas": 2, "num.partitions": 3},
    },
}
"""Of `penstock local up` without a manifest: one broker may be killed, and nothing stops."""


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=deep)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} appears twice", key_node.start_mark
                )
            if isinstance(key, Hashable):
                seen.add(key)
        return super().construct_mapping(node, deep=deep)


def default_text(name: str) -> str:
    """The manifest of a cluster whose user has none."""
    return yaml.safe_dump({**_DEFAULT, "metadata": {"name": name}}, sort_keys=False)


def read_text(path: str) -> str:
    """The file's text; `-` is standard input. Raises MisuseError if it cannot be read."""
    try:
        data = sys.stdin.buffer.read(MANIFEST_BYTES_MAX + 1) if path == "-" else _read_file(path)
        if len(data) > MANIFEST_BYTES_MAX:
            raise MisuseError(
                f"{path}: larger than {MANIFEST_BYTES_MAX} bytes; is it really a manifest?"
            )
        return data.decode()
    except OSError as error:
        raise MisuseError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise MisuseError(f"{path}: is not UTF-8 text (byte {error.start})") from error


def _read_file(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(MANIFEST_BYTES_MAX + 1)


def parse_text(text: str, source: str) -> Manifest:
    """Raises MisuseError (bad YAML) or ManifestError (every problem of the objects)."""
    try:
        documents = list(yaml.load_all(text, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        place = f" line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise MisuseError(
            f"{source}:{place} is not valid YAML: {error.problem}", ErrorCode.INVALID_CONFIG
        ) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise MisuseError(
            f"{source}: is not valid YAML: {error}", ErrorCode.INVALID_CONFIG
        ) from error
    return parse_manifest(documents, source)


def load_manifest(path: str | Path) -> Manifest:
    return parse_text(read_text(str(path)), "<stdin>" if str(path) == "-" else str(path))


def choose_cluster(manifest: Manifest, name: str | None = None) -> Cluster:
    """The Cluster to run: the named one, or the only one. Raises MisuseError otherwise."""
    names = [cluster.name for cluster in manifest.clusters]
    chosen = [one for one in manifest.clusters if name in (None, one.name)]
    if len(chosen) == 1:
        return chosen[0]
    if not names:
        raise MisuseError(f"{manifest.source}: contains no Cluster; local mode needs one")
    if name is not None:
        raise MisuseError(f"{manifest.source}: contains no Cluster/{name}, only {', '.join(names)}")
    raise MisuseError(
        f"{manifest.source}: contains {len(names)} Clusters ({', '.join(names)}); choose one "
        "with --cluster NAME"
    )


def refuse_protected(path: Path) -> None:
    """Raises ClusterError(DELETION_PROTECTED) if the manifest that a cluster was last started with
    protects it. One that is gone, or that this release cannot read, protects nothing."""
    try:
        manifest = load_manifest(path)
    except MisuseError:
        return
    for cluster in manifest.clusters:
        if cluster.spec.config.get(DELETION_PROTECTION) == "true":
            raise ClusterError(
                f"Cluster {cluster.name} is protected from deletion: {DELETION_PROTECTION} is true "
                f'in its spec.config; set it to "false" in {manifest.source} and, to keep it so, '
                "in the manifest that you start it with",
                ErrorCode.DELETION_PROTECTED,
            )
