"""A live object is compared by quantities in two forms, and by texts that only look like one."""

import pytest

from penstock_operator.compare import contains


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
