"""What the seeds have in them, and that an option of a test decides instead."""

from random import Random

import pytest

from penstock_sim.contents import Contents, Options, contents_of
from penstock_sim.layout import draw_layout

SEEDS = range(288)
ONLY_WITH: dict[str, Options] = {"rebirth": {"changes": True}}
"""What is in no history that does not ask for such."""


def test_seeds_have_clusters_of_all_sizes() -> None:
    layouts = [draw_layout(Random(seed)) for seed in SEEDS]
    assert {layout.brokers for layout in layouts} == {3, 4, 5}
    assert {(layout.factor, layout.min_isr) for layout in layouts} == {
        (1, 2),
        (2, 1),
        (2, 2),
        (3, 1),
        (3, 2),
    }
    assert all(layout.factor <= layout.brokers for layout in layouts)
    spare = [layout for layout in layouts if layout.factor < layout.brokers]
    assert len(spare) > len(layouts) / 3


@pytest.mark.parametrize("brokers", [2, 3, 5])
def test_a_test_may_want_so_many_brokers(brokers: int) -> None:
    assert draw_layout(Random(1), brokers).brokers == brokers


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_a_test_may_want_so_many_replicas(factor: int) -> None:
    assert {draw_layout(Random(seed), factor=factor).factor for seed in SEEDS} == {factor}


@pytest.mark.parametrize("name", list(Contents.__dataclass_fields__))
def test_everything_is_in_some_seeds_and_not_in_others(name: str) -> None:
    found = [getattr(contents_of(seed, ONLY_WITH.get(name, {})), name) for seed in SEEDS]
    assert 0 < sum(found) < len(found)
    wanted: Options = {name: True}  # type: ignore[misc]  # any of its names
    assert getattr(contents_of(0, wanted), name)
    assert not getattr(contents_of(0, {name: False}), name)  # type: ignore[misc]


def test_replicas_move_in_half_of_the_seeds_with_journals_and_without() -> None:
    moving = [contents_of(seed, {}) for seed in SEEDS if contents_of(seed, {}).moves]
    assert len(moving) == len(SEEDS) / 2
    assert sum(one.journal for one in moving) == len(moving) / 2


def test_whoever_wants_groups_or_transactions_gets_no_pipe_in_place_of_them() -> None:
    assert any(contents_of(seed, {}).pipe for seed in SEEDS)
    for seed in SEEDS:
        found = contents_of(seed, {"transactions": True})
        assert (found.pipe, found.bank, found.ring) == (False, False, False)
