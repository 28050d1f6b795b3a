"""Who may look: tokens that count once, sessions that end, hosts. With a clock of its own."""

import pytest

from penstock.ui.gate import SESSION_S, SESSIONS_MAX, TOKEN_S, Entry, Gate


class World:
    """A gate, the time, and the tokens that the terminal has shown."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.shown: list[str] = []
        self.gate = Gate(lambda: self.now_s, self.shown.append, frozenset({"127.0.0.1:8642"}))
        self.gate.issue()


@pytest.fixture
def world() -> World:
    return World()


def test_a_token_counts_once_and_the_next_is_shown(world: World) -> None:
    entry, session = world.gate.enter(world.shown[0])
    assert entry is Entry.WELCOME
    assert world.gate.knows(session)
    assert len(world.shown) == 2
    assert world.gate.enter(world.shown[0]) == (Entry.USED, "")
    assert len(world.shown) == 2, "whoever repeats a used link fills the terminal"
    assert world.gate.enter(world.shown[1])[0] is Entry.WELCOME


def test_a_token_that_is_too_old_lets_nobody_in_and_is_replaced(world: World) -> None:
    world.now_s += TOKEN_S
    assert world.gate.enter(world.shown[0]) == (Entry.EXPIRED, "")
    assert len(world.shown) == 2
    assert world.gate.enter(world.shown[0]) == (Entry.EXPIRED, "")
    assert len(world.shown) == 2
    assert world.gate.enter(world.shown[1])[0] is Entry.WELCOME


@pytest.mark.parametrize("token", ["", "guessed", "ü", "\udcff", "x" * 100_000])
def test_a_token_that_was_never_shown_does_nothing(world: World, token: str) -> None:
    assert world.gate.enter(token) == (Entry.UNKNOWN, "")
    assert len(world.shown) == 1


def test_a_session_ends(world: World) -> None:
    _, session = world.gate.enter(world.shown[0])
    world.now_s += SESSION_S - 1
    assert world.gate.knows(session)
    world.now_s += 1
    assert not world.gate.knows(session)
    assert not world.gate.knows("")
    assert not world.gate.knows(world.shown[0]), "a token is no session"


def test_sessions_are_limited_and_the_oldest_goes(world: World) -> None:
    sessions = [world.gate.enter(world.shown[-1])[1] for _ in range(SESSIONS_MAX + 1)]
    assert not world.gate.knows(sessions[0])
    assert all(world.gate.knows(one) for one in sessions[1:])


def test_only_the_own_host_is_accepted(world: World) -> None:
    assert world.gate.accepts_host("127.0.0.1:8642")
    for host in ("", "127.0.0.1", "127.0.0.1:8643", "evil.example:8642", "127.0.0.1:8642.evil"):
        assert not world.gate.accepts_host(host)
