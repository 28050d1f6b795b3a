"""Groups in transactions under simulation: pipes, a bank, and the bugs that they must not have."""

import pytest

from penstock_sim.planted_pipes import PIPE_BUGS
from penstock_sim.world import simulate

SEEDS_TO_FIND_A_BUG = 500
FOUND_BY = ("I8", "I11", "I15", "I16", "I18", "I24")


@pytest.mark.parametrize("name", PIPE_BUGS)
def test_a_planted_bug_of_pipes_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PIPE_BUGS[name](monkeypatch)
    for seed in range(SEEDS_TO_FIND_A_BUG):
        violation = simulate(seed, pipe=True).violation
        if violation is not None:
            print(f"{name}: seed {seed}: {violation}")
            assert violation.startswith(FOUND_BY), violation
            return
    pytest.fail(f"{SEEDS_TO_FIND_A_BUG} seeds did not find {name}")


def test_what_comes_out_of_a_pipe_is_made_of_what_went_in() -> None:
    histories = [simulate(seed, pipe=True) for seed in range(20)]
    for history in histories:
        assert history.violation is None, (history.seed, history.violation)
    assert sum(history.piped for history in histories) > 1_000
    assert sum(history.group_commits for history in histories) > 100
    assert sum(history.transactions for history in histories) > 200


def test_a_bank_has_what_it_had() -> None:
    histories = [simulate(seed, bank=True) for seed in range(20)]
    for history in histories:
        assert history.violation is None, (history.seed, history.violation)
    assert sum(history.transactions for history in histories) > 50
