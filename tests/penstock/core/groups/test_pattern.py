"""Patterns: the same verdict as `re` where both know the language, in linear time, or refused."""

import re
from time import perf_counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.core.groups.pattern import (
    _STATES_MAX,
    PATTERN_MAX_CHARS,
    TopicPattern,
    literal_prefix,
)
from penstock.errors import ClusterError, ErrorCode

atoms = st.one_of(
    st.sampled_from(["a", "b", "-", ".", "[ab]", "[^a]", "[a-c]", r"\.", r"[\].-]", "[-a]"])
)
patterns = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"({two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from("*+?")).map(lambda two: f"({two[0]}){two[1]}"),
        inner.map(lambda one: f"({one}|)"),
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(patterns, st.lists(st.text("abc.-]", max_size=6), min_size=1, max_size=5))
@example("a|b", ["a", "b", "ab", ""])
def test_matches_what_re_matches(pattern: str, names: list[str]) -> None:
    if len(pattern) > PATTERN_MAX_CHARS:
        return
    ours, theirs = TopicPattern(pattern), re.compile(pattern)
    for name in names:
        assert ours.matches(name) == bool(theirs.fullmatch(name)), name


@given(patterns, st.lists(st.text("abc.-]", max_size=6), min_size=1, max_size=5))
@example("a|b", ["a", "b", "ab", "^a", "b$"])
def test_anchors_of_the_whole_name_change_nothing(pattern: str, names: list[str]) -> None:
    if len(pattern) > PATTERN_MAX_CHARS - 2:
        return
    plain = TopicPattern(pattern)
    for anchored in (f"^{pattern}$", f"^{pattern}", f"{pattern}$"):
        made = TopicPattern(anchored)
        assert [made.matches(name) for name in names] == [plain.matches(name) for name in names]
        assert literal_prefix(anchored) == literal_prefix(pattern)


def test_no_pattern_takes_more_than_linear_time() -> None:
    pattern = TopicPattern("((a*)*)*" * 20 + "b")
    started = perf_counter()
    assert not pattern.matches("a" * 249)
    assert perf_counter() - started < 2.0


def test_names_of_any_characters_do_not_fill_the_memory() -> None:
    pattern = TopicPattern("[^a]*")
    for number in range(_STATES_MAX + 100):
        assert pattern.matches(chr(0x4E00 + number))
    assert len(pattern._steps) <= _STATES_MAX


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("", "0 characters"),
        ("a" * 257, "257 characters"),
        ("(a", "not closed"),
        ("a)", "has no matching opening bracket"),
        ("[a", "not closed"),
        ("[]", "is empty"),
        ("[b-a]", "empty"),
        ("*", "nothing before"),
        ("a{2}", "not supported"),
        ("a^b", "not supported"),
        ("a$b", "not supported"),
        ("(^a)", "not supported"),
        ("(a$", "not closed"),
        ("^^a", r"only at its start and \$ at its end"),
        ("a$$", "not supported"),
        (r"\d", "not a known escape"),
        ("a\\", "not a known escape"),
        ("(" * 40 + ")" * 40, "brackets are nested more than"),
        ("]", "not supported"),
    ],
)
def test_what_is_not_in_the_language_is_refused_with_a_reason(pattern: str, what: str) -> None:
    with pytest.raises(ClusterError, match=what) as caught:
        TopicPattern(pattern)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
