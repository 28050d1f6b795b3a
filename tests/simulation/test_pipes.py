"""Groups in transactions under simulation: pipes, and a bank. Their bugs: `test_simulation`."""

from penstock_sim.world import simulate


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
