"""What docs/operations.md tells a person to write into metadata does what the page says."""

import json

import pytest
from support.controller_world import World
from support.documents import ROOT

from penstock.core.control.documents import topic_key
from penstock.core.types import NO_LEADER, BrokerId
from penstock.errors import ClusterError
from tools.snippets.page import read_page


def moved_since_the_copy() -> tuple[World, str]:
    """Brokers 3, 4 and 5 have a topic that was moved; the copy is of when 0, 1 and 2 had it, and
    were to take it from broker 3."""
    world = World().start()
    world.register_all(0, 1, 2, 3, 4, 5)
    world.create(assignment=(tuple(map(BrokerId, range(3))),))
    text, _ = world.documents.texts.pop(topic_key("t"))
    found = json.loads(text)
    found["partitions"][0]["dropping"] = [3]
    return world, json.dumps(found)


def applied(world: World, text: str) -> World:
    """A controller that starts with what a person has applied."""
    world.documents.texts[topic_key("t")] = (text, "by hand")
    after = World(world.documents).start()
    for broker_id in range(6):
        after.register(broker_id)
    return after


def test_a_copy_of_a_topic_that_has_moved_since_leads_to_the_one_whose_log_ends_last() -> None:
    world, copy = moved_since_the_copy()
    found = json.loads(copy)
    (page,) = (one for one in read_page(ROOT, "docs/operations.md") if '"isr": [3]' in one.text)
    found["partitions"] = [json.loads(page.text)]
    after = applied(world, json.dumps(found))
    state = after.topic().partitions[0].state
    assert (state.leader, state.isr, state.replicas) == (3, (3,), (3, 4, 5))
    assert state.leader_epoch > 1004
    assert not state.dropping, "the orphans stay"


@pytest.mark.parametrize("replicas", [[0, 1, 2], [0, 1, 2, 3]])
def test_with_the_replicas_of_then_controllers_do_not_start(replicas: list[int]) -> None:
    world, copy = moved_since_the_copy()
    found = json.loads(copy)
    found["partitions"][0] |= {"isr": [3], "leader": NO_LEADER, "replicas": replicas}
    with pytest.raises(ClusterError, match="is unreadable"):
        applied(world, json.dumps(found))
