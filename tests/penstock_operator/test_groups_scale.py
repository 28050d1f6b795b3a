"""Scaling by lag: bounds, up at once, down after a while, and when it holds still."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.manifest.objects import ScaleTarget
from penstock_operator.groups.model import GroupFacts, Lag
from penstock_operator.groups.scale import Memory, decide, hold_still

TARGET = ScaleTarget("Deployment", "reader", 1, 10, 100)
DOWN_AFTER_MS = TARGET.stabilization_window_s * 1000


def facts(backlog: int | None, partitions: int = 12) -> GroupFacts:
    lag = None if backlog is None else Lag(backlog, 1)
    return GroupFacts("Stable", 1, {}, lag, "no answer", partitions, backlog)


def test_it_holds_still_when_the_numbers_cannot_be_trusted() -> None:
    assert not hold_still(ready=True, reset_is_open=False, facts=facts(5))
    assert "not Ready" in hold_still(ready=False, reset_is_open=False, facts=facts(5))
    assert "reset" in hold_still(ready=True, reset_is_open=True, facts=facts(5))
    assert "unknown" in hold_still(ready=True, reset_is_open=False, facts=facts(None))
    assert "unknown" in hold_still(ready=True, reset_is_open=False, facts=None)
    assert "unknown" in hold_still(ready=True, reset_is_open=False, facts=facts(5, 0))


def test_up_at_once_between_the_bounds() -> None:
    assert decide(TARGET, facts(101), 1, None, 0).replicas == 2
    assert decide(TARGET, facts(9_999), 1, None, 0).replicas == 10
    assert decide(TARGET, facts(9_999, partitions=3), 1, None, 0).replicas == 3
    assert decide(TARGET, facts(100), 1, None, 0).replicas is None


def test_a_deployment_that_somebody_stopped_stays_stopped() -> None:
    off = decide(TARGET, facts(9_999), 0, None, 0)
    assert off.replicas is None
    assert "scale it to 1 to continue" in off.note
    to_zero = replace(TARGET, min_replicas=0)
    assert decide(to_zero, facts(1), 0, None, 0).replicas == 1
    idle = decide(to_zero, facts(0), 1, Memory(0, 0), DOWN_AFTER_MS)
    assert idle.replicas == 0


def test_down_only_to_the_most_that_was_wanted_meanwhile() -> None:
    first = decide(TARGET, facts(100), 5, None, 0)
    assert (first.replicas, first.memory) == (None, Memory(0, 1))
    second = decide(TARGET, facts(300), 5, first.memory, DOWN_AFTER_MS // 2)
    assert (second.replicas, second.memory) == (None, Memory(0, 3))
    third = decide(TARGET, facts(100), 5, second.memory, DOWN_AFTER_MS)
    assert third.replicas == 3
    again = decide(TARGET, facts(500), 5, second.memory, DOWN_AFTER_MS)
    assert (again.replicas, again.memory) == (None, None), "it begins anew"


def test_a_window_of_0_goes_down_at_once() -> None:
    assert decide(replace(TARGET, stabilization_window_s=0), facts(100), 5, None, 7).replicas == 1


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 5),
    st.integers(1, 8),
    st.lists(
        st.tuples(st.integers(0, 2_000), st.integers(1, 12), st.integers(1, 200_000)), min_size=1
    ),
)
def test_it_never_leaves_its_bounds_nor_goes_down_early_and_comes_to_rest(
    least: int, more: int, looks: list[tuple[int, int, int]]
) -> None:
    target = replace(TARGET, min_replicas=least, max_replicas=least + more)
    replicas, memory, now_ms = max(least, 1), None, 0
    enough_ms = 0
    """When so many were needed last."""
    for backlog, partitions, after_ms in looks:
        now_ms += after_ms
        needed = min(max(-(-backlog // 100), least), least + more, partitions)
        if needed >= replicas:
            enough_ms = now_ms
        made = decide(target, facts(backlog, partitions), replicas, memory, now_ms)
        memory = made.memory
        if made.replicas is not None:
            assert made.replicas != replicas
            assert made.replicas >= needed
            assert made.replicas <= max(least + more, replicas)
            if made.replicas > replicas:
                assert made.replicas == needed, "at once, and never more than partitions"
            else:
                assert now_ms - enough_ms >= DOWN_AFTER_MS
            enough_ms = now_ms
            replicas = made.replicas
    backlog, partitions, _ = looks[-1]
    for _ in range(4):
        now_ms += DOWN_AFTER_MS
        made = decide(target, facts(backlog, partitions), replicas, memory, now_ms)
        memory, replicas = made.memory, replicas if made.replicas is None else made.replicas
    last = decide(target, facts(backlog, partitions), replicas, memory, now_ms)
    assert (last.replicas, last.memory) == (None, None)
