"""Names, sizes and owners of the metadata objects; what needs no API server."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.limits import DOCUMENT_BYTES_MAX
from penstock.errors import MisuseError
from penstock_broker.controller.metadata_store.kubernetes_objects import ClusterObjects, is_version

FLIGHTS = ClusterObjects("flights", "shop")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
TOPIC_NAMES = st.text("abcXYZ019._-", min_size=1, max_size=249)


@given(TOPIC_NAMES)
def test_every_topic_name_becomes_a_legal_object_name(topic: str) -> None:
    longest = ClusterObjects("c" * 40, "shop")
    name = longest.name_of(f"topic/{topic}")
    assert SUBDOMAIN.fullmatch(name), name
    assert len(name) <= 253


@given(TOPIC_NAMES, TOPIC_NAMES)
def test_two_topics_never_share_an_object(one: str, other: str) -> None:
    same = FLIGHTS.name_of(f"topic/{one}") == FLIGHTS.name_of(f"topic/{other}")
    assert same is (one == other)


def test_names_that_look_alike_are_kept_apart_and_readable() -> None:
    keys = ["topic/a.b", "topic/a_b", "topic/A-B", "topic/a-b", "topic/___"]
    names = {FLIGHTS.name_of(key) for key in keys}
    assert len(names) == len(keys)
    assert FLIGHTS.name_of("topic/Late.Flights_2").startswith("flights-topic-late-flights-2-")
    assert FLIGHTS.name_of("cluster") == "flights-metadata"


def test_clusters_whose_names_begin_alike_do_not_collide() -> None:
    longer = ClusterObjects("flights-topic", "shop")
    assert FLIGHTS.name_of("topic/topic-x") != longer.name_of("topic/x")
    assert FLIGHTS.selector == "penstock.dev/cluster=flights,penstock.dev/metadata"


def test_a_document_that_is_too_large_is_refused_before_it_is_sent() -> None:
    key = "topic/big"
    fits = DOCUMENT_BYTES_MAX - len(key)
    assert FLIGHTS.config_map(key, "ä" * (fits // 2), None)["data"]["key"] == key
    with pytest.raises(MisuseError, match=r"topic/big.*1,048,577.*1,048,576.*nothing was written"):
        FLIGHTS.config_map(key, "x" * (fits + 1), None)


@pytest.mark.parametrize(
    ("text", "good"), [("17", True), ("0", False), ("", False), ("x", False), ("٣", False)]
)
def test_versions_that_would_overwrite_anything_are_known(text: str, good: bool) -> None:
    assert is_version(text) is good


@pytest.mark.parametrize("name", ["", "Flights", "a_b", "-a", "a-", "a" * 41, "a.b", "a\n"])
def test_a_name_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(MisuseError, match="--cluster is"):
        ClusterObjects(name, "shop")


def test_the_owner_must_be_exactly_the_one_given() -> None:
    owned = ClusterObjects("flights", "shop", "uid-1")
    ours = owned.config_map("cluster", "{}", None)["metadata"]
    assert owned.has_right_owner(ours)
    assert not owned.has_right_owner({})
    assert not FLIGHTS.has_right_owner(ours), "retained metadata must lose its owner"
    assert not ClusterObjects("flights", "shop", "uid-2").has_right_owner(ours)
    other = {"apiVersion": "v1", "kind": "Secret", "name": "flights", "uid": "uid-9"}
    assert FLIGHTS.has_right_owner({"ownerReferences": [other]})


def test_nothing_names_an_application_of_argo_cd() -> None:
    """By `app.kubernetes.io/instance`, it would delete what has no owner and is not in Git."""
    document = FLIGHTS.config_map("topic/t", "{}", None)
    assert FLIGHTS.owners == []
    assert document["metadata"]["labels"]["penstock.dev/cluster"] == "flights"
    assert "app.kubernetes.io/instance" not in document["metadata"]["labels"]
