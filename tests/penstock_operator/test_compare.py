"""A live object is compared by quantities in two forms, and by texts that only look like one."""

from typing import Any

import pytest

from penstock_operator.compare import contains, is_applied, stamped


@pytest.mark.parametrize("fingerprint", ["12e34567890123456789", "1E999999999999999999", "7e123"])
def test_a_fingerprint_that_reads_as_a_power_of_ten_is_only_a_text(fingerprint: str) -> None:
    assert contains({"hash": fingerprint}, {"hash": fingerprint})
    assert not contains({"hash": "1"}, {"hash": fingerprint})
    assert not contains({"hash": fingerprint}, {"hash": "0" + fingerprint})


@pytest.mark.parametrize(
    ("live", "wanted"), [("1", "1000m"), ("1Gi", "1024Mi"), ("1e3", "1k"), ("0.5", "500m")]
)
def test_the_server_may_write_a_quantity_in_another_form(live: str, wanted: str) -> None:
    assert contains({"cpu": live}, {"cpu": wanted})
    assert not contains({"cpu": live + "1"}, {"cpu": wanted})


@pytest.mark.parametrize("nothing", [{}, []])
def test_what_is_wanted_empty_may_be_missing(nothing: object) -> None:
    assert contains(None, nothing)
    assert contains({}, {"spec": nothing})
    assert not contains("text", nothing)


@pytest.mark.parametrize("something", [{"a": 1}, [1]])
def test_what_is_wanted_must_be_there(something: object) -> None:
    assert not contains(None, something)
    assert not contains({}, {"spec": something})
    assert not contains({"spec": "text"}, {"spec": something})


def test_what_the_server_adds_does_not_matter_but_for_selectors() -> None:
    assert contains({"a": 1, "added": 2}, {"a": 1})
    assert not contains({"a": 2, "added": 2}, {"a": 1})
    assert contains({"selector": {"a": 1}}, {"selector": {"a": 1}})
    assert not contains({"selector": {"a": 1, "added": 2}}, {"selector": {"a": 1}})


def test_lists_have_the_same_length_and_order() -> None:
    assert contains([{"a": 1, "added": 2}, 3], [{"a": 1}, 3])
    assert not contains([1, 2, 3], [1, 2])
    assert not contains([2, 1], [1, 2])


OURS = {"containers": [{"name": "broker", "env": [{"name": "A", "value": "1"}]}]}
MORE = {"name": "B", "value": "2"}


def shared(live: Any, wanted: Any) -> bool:
    """Both as specs of an object that is applied."""
    made = stamped({"metadata": {"name": "x"}, "spec": wanted})
    return is_applied({"metadata": {"name": "x"}, "spec": wanted}, {**made, "spec": live})


@pytest.mark.parametrize(
    "live",
    [
        {"containers": [{"name": "broker", "env": [MORE, {"name": "A", "value": "1"}]}]},
        {"containers": [{"name": "sidecar"}, *OURS["containers"]], "volumes": [{"name": "v"}]},
    ],
)
def test_what_others_add_to_a_list_that_is_merged_is_theirs(live: Any) -> None:
    assert shared(live, OURS)
    assert not contains(live["containers"], OURS["containers"]), "a template is ours, or is not"


@pytest.mark.parametrize(
    ("live", "wanted"),
    [
        ({"containers": [{"name": "broker", "env": [{"name": "A", "value": "2"}]}]}, OURS),
        ({"containers": [{"name": "broker", "env": [MORE]}]}, OURS),
        ({"args": ["a", "b"]}, {"args": ["a"]}),
        ({"ports": [{"port": 1}, {"port": 2}]}, {"ports": [{"port": 1}]}),
        ({"ports": [{"name": "a", "port": 2}]}, {"ports": [{"name": "a", "port": 1}]}),
    ],
)
def test_what_others_change_or_remove_is_put_back(live: Any, wanted: Any) -> None:
    assert shared(wanted, wanted)
    assert not shared(live, wanted)
