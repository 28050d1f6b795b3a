"""The beginning that all names have which a pattern matches."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.core.groups.pattern import TopicPattern, literal_prefix
from penstock.errors import ClusterError


@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [
        (r"etl\..*", "etl."),
        ("etl.*", "etl"),
        ("orders", "orders"),
        ("ab*", "a"),
        ("ab?c", "a"),
        ("ab+", "ab"),
        ("ab+*c", "a"),
        ("ab+?c", "a"),
        ("ab++", "ab"),
        ("(ab)c", ""),
        ("a[bc]", "a"),
        ("ab|cd", ""),
        (".*", ""),
    ],
)
def test_by_example(pattern: str, prefix: str) -> None:
    assert literal_prefix(pattern) == prefix


@example(pattern="a+*b", name="b")
@given(
    pattern=st.text(alphabet=r"ab.*+?|()[]\\", min_size=1, max_size=8),
    name=st.text(alphabet="ab.", max_size=5),
)
def test_every_name_that_matches_begins_so(pattern: str, name: str) -> None:
    try:
        compiled = TopicPattern(pattern)
    except ClusterError:
        return
    if compiled.matches(name):
        assert name.startswith(literal_prefix(pattern))
