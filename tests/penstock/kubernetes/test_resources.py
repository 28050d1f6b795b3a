"""Paths of kinds, and whether our own kinds are where their CRDs put them."""

from pathlib import Path

import yaml

from penstock.core.manifest import schema
from penstock.kubernetes.names import API_VERSION
from penstock.kubernetes.resources import RESOURCES, path_of

CRDS = sorted((Path(__file__).parents[3] / "crds").glob("*.yaml"))


def test_our_kinds_have_the_paths_of_their_crds() -> None:
    assert API_VERSION == schema.API_VERSION
    specs = [yaml.safe_load(file.read_text())["spec"] for file in CRDS]
    assert len(specs) == 3
    for spec in specs:
        [version] = [each["name"] for each in spec["versions"] if each["served"]]
        served = f"/apis/{spec['group']}/{version}", spec["names"]["plural"]
        assert RESOURCES[spec["names"]["kind"]] == served


def test_a_path_names_a_kind_a_namespace_and_an_object() -> None:
    assert path_of("Node") == "/api/v1/nodes"
    assert path_of("Node", None, "n1") == "/api/v1/nodes/n1"
    assert path_of("StatefulSet", "prod") == "/apis/apps/v1/namespaces/prod/statefulsets"
    assert path_of("Topic", "prod", "t").endswith("/v1alpha1/namespaces/prod/topics/t")
