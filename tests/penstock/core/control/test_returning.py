"""Leaderships return; what was searched in vain is not searched again until it is another."""

from collections.abc import Iterator

import pytest
from support.controller_world import World

from penstock.core.control.documents import TopicDocument
from penstock.core.control.draft import Draft


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for every pass over all topics."""
    seen: list[int] = []
    topics = Draft.topics

    def counted(draft: Draft) -> Iterator[TopicDocument]:
        seen.append(1)
        return topics(draft)

    monkeypatch.setattr(Draft, "topics", counted)
    return seen


def test_a_cluster_at_rest_is_searched_once(three: World, searches: list[int]) -> None:
    three.pass_time(2 * three.config.preferred_leader_interval_ms)
    searches.clear()
    three.pass_time(5 * three.config.preferred_leader_interval_ms)
    assert not searches


def test_a_broker_that_comes_back_gets_its_leaderships_after_a_long_rest(
    three: World, searches: list[int]
) -> None:
    three.pass_time(3 * three.config.preferred_leader_interval_ms)
    three.kill(0)
    three.pass_time(3 * three.config.preferred_leader_interval_ms)
    three.register(0, run=2)
    three.pass_time(3 * three.config.preferred_leader_interval_ms)
    assert three.state()[0] == 1, "it is not in sync yet"
    assert three.alter_isr(1, (0, 1, 2)).error is None
    searches.clear()
    three.pass_time(2 * three.config.preferred_leader_interval_ms)
    assert three.state()[0] == 0
    assert searches


def test_who_may_lead_counts_though_no_topic_is_another(three: World) -> None:
    """Held away from its leadership: only time passes until it returns."""
    three.alter_isr(0, (0, 1, 2))
    session = three.machine.sessions.get(three.topic().partitions[0].state.leader)
    assert session is not None
    three.kill(0)
    three.register(0, run=2)
    assert three.alter_isr(1, (0, 1, 2)).error is None
    again = three.machine.sessions.get(session.broker_id)
    assert again is not None
    again.held_until_ms = three.now_ms + three.config.away_hold_ms
    three.pass_time(three.config.away_hold_ms // 2)
    assert three.state()[0] == 1
    three.pass_time(three.config.away_hold_ms)
    assert three.state()[0] == 0
