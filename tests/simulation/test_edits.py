"""Metadata that somebody edits by hand, simulated: controllers undo it before others believe it."""

import json

import pytest

from penstock.core.control.documents import topic_key
from penstock_broker.controller.store_look import StoreLook
from penstock_sim.world import TOPIC, World, simulate

KEY = topic_key(TOPIC)


def test_edits_are_undone_and_nobody_believes_them() -> None:
    histories = [simulate(seed, edits=True) for seed in range(30)]
    for history in histories:
        assert history.violation is None, (history.seed, history.violation)
    assert sum(history.edits for history in histories) > 80
    assert sum(history.handed_over for history in histories) > 30


def test_a_controller_that_hands_over_without_a_look_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nothing(_self: StoreLook) -> None:
        """No look."""

    monkeypatch.setattr(StoreLook, "settle", nothing)
    violations = (simulate(seed, edits=True).violation for seed in range(60))
    found = next(filter(None, violations), "")
    assert found.startswith("I"), found


class Restored:
    """A topic's document is copied; later it is deleted, and nobody undoes that; a person applies
    the copy with what docs/operations.md says."""

    def __init__(self, seed: int) -> None:
        faults = frozenset({"slow_disk", "kill_broker", "cut_brokers"})
        self.world = World(
            seed, faults=faults, moves=False, journal=False, groups=False, transactions=False
        )
        self.world.blackout = False
        self._copy = ""
        after, chaos_ms = self.world.scheduler.after, self.world.chaos_ms
        after(300, self._keep)
        after(chaos_ms / 2 + 350, self._delete)
        after(chaos_ms + 700, self._apply)

    def _keep(self) -> None:
        self._copy = self.world.meta.documents[KEY].text

    def _delete(self) -> None:
        self.world.meta.delete_by_hand(KEY)
        self._replace_controllers()

    def _apply(self) -> None:
        assert KEY not in self.world.meta.documents, "nobody knows the topic"
        document = json.loads(self._copy)
        for key, partition in zip(self.world.keys, document["partitions"], strict=True):
            ends = {
                broker: log.disk.log_end(slot)
                for broker in partition["replicas"]
                if (slot := (log := self.world.brokers[broker]).disk.slot(key)) is not None
            }
            partition["isr"], partition["leader"] = [max(ends, key=ends.__getitem__)], -1
            partition["epoch"] += 1000
            partition["version"] += 1000
            partition.pop("elr", None)
        self.world.meta.put_by_hand(KEY, json.dumps(document))
        self._replace_controllers()

    def _replace_controllers(self) -> None:
        for controller in self.world.controllers.values():
            if controller.up:
                controller.kill()
        self.world.meta.lose_lease()
        self.world.controllers[101].start()


@pytest.mark.parametrize("seed", range(8))
def test_a_topic_whose_document_was_lost_comes_back_with_all_that_was_acknowledged(
    seed: int,
) -> None:
    """As docs/operations.md says; `run` raises what is missing at the end (I7)."""
    restored = Restored(seed)
    restored.world.run()
    sent = [one for producer in restored.world.producers for one in producer.sent]
    assert any(one.acked for one in sent)
