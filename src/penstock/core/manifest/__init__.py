"""Manifests: the YAML that `kubectl apply` and `penstock local up` both accept, as data.

Belongs here: the table of every field of every kind (`schema`, `status`; a row: `rows`), its
reader (`fields`, `convert`), the objects of a manifest (`objects`) and the checks that
need several fields or objects (`settings`, `groups`, `access`, `parse`).
Pure: takes parsed YAML, never opens a file. Never here: YAML text, Kubernetes calls,
and what to do about a manifest (local mode and the operator decide that).

The tables are the single source of truth: the CRDs' structural schemas are generated from them
(`make crds`), never written by hand.
"""

from penstock.core.manifest.objects import (
    Cluster,
    ClusterSpec,
    ConsumerGroup,
    ConsumerGroupSpec,
    DeletionPolicy,
    Manifest,
    Topic,
    TopicSpec,
)
from penstock.core.manifest.parse import ManifestError, parse_manifest
from penstock.core.manifest.problems import Problem

__all__ = [
    "Cluster",
    "ClusterSpec",
    "ConsumerGroup",
    "ConsumerGroupSpec",
    "DeletionPolicy",
    "Manifest",
    "ManifestError",
    "Problem",
    "Topic",
    "TopicSpec",
    "parse_manifest",
]
