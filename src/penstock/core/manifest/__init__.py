"""Manifests: the YAML that `kubectl apply` and `penstock local up` both take, as data.

What belongs here: the table of every field of every kind (`schema`), its reader (`fields`), the
objects a manifest turns into (`objects`) and the checks that need several objects (`parse`).
Pure: takes parsed YAML, never opens a file. What never may be here: YAML text, Kubernetes
calls, and what to do about a manifest (local mode and the operator decide that).

The tables in `schema` are the single source of truth: documentation and the CRDs' structural
schemas are generated from or compared with them, never kept beside them by hand.
"""

from penstock.core.manifest.fields import Problem
from penstock.core.manifest.objects import (
    Cluster,
    ClusterSpec,
    ConsumerGroup,
    DeletionPolicy,
    Manifest,
    Topic,
    TopicSpec,
)
from penstock.core.manifest.parse import ManifestError, parse_manifest

__all__ = [
    "Cluster",
    "ClusterSpec",
    "ConsumerGroup",
    "DeletionPolicy",
    "Manifest",
    "ManifestError",
    "Problem",
    "Topic",
    "TopicSpec",
    "parse_manifest",
]
