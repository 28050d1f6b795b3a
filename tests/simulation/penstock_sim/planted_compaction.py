"""Bugs in compacting transactional data, planted on purpose as in `planted`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from penstock.core.compaction.outcomes import Outcomes
from penstock.core.compaction.rewrite import Rewriter
from penstock.core.records import decode_batch
from penstock.core.replication.follower import Follower
from penstock.core.replication.machine import ReplicaMachine
from penstock.core.types import Offset
from penstock_broker.maintenance.compaction import Pass
from penstock_sim import compaction


def sweep_markers_in_the_pass_of_their_data(patch: Any) -> None:
    """The newest chunk comes first: for a while the data is there without its marker."""
    init = Rewriter.__init__

    def hasty(self: Rewriter, keys: Any, plan: Any, *more: Any) -> None:
        init(self, keys, replace(plan, tombstones_end=plan.end), *more)

    patch.setattr(Rewriter, "__init__", hasty)


def wait_for_markers_that_were_swept(patch: Any) -> None:
    """A replica that was down ignores what its leader says of swept markers."""
    answered = Follower.answered

    def deaf(self: Follower, answer: Any, out: Any, now_ms: int) -> None:
        answered(self, replace(answer, swept_end=Offset(0)), out, now_ms)

    patch.setattr(Follower, "answered", deaf)


def let_aborted_records_supersede(patch: Any) -> None:
    """Keys of aborted transactions are in the key map: records they would have replaced are
    removed."""

    def careless(self: Pass, batch: Any) -> None:
        if not batch.header.is_control:
            self.keys.add(decode_batch(batch))

    patch.setattr(Pass, "_take_in", careless)


def compact_with_half_of_the_outcomes(patch: Any) -> None:
    """Some aborted data loses its flag, and becomes visible to all readers (redpanda#7143)."""
    init = Outcomes.__init__
    patch.setattr(Outcomes, "__init__", lambda self, aborted=(): init(self, tuple(aborted)[::2]))


def compact_what_is_not_decided(patch: Any) -> None:
    """A pass goes up to the high watermark, beyond the last stable offset."""
    patch.setattr(compaction, "compacted_up_to", lambda marks: marks.high_watermark)


def remove_null_values_ahead_of_a_copy(patch: Any) -> None:
    """A leader removes them once they are old, though a copy comes to them later."""
    patch.setattr(ReplicaMachine, "copied_to", property(lambda _self: None))


COMPACTION_BUGS: Final[dict[str, Callable[[Any], None]]] = {
    bug.__name__: bug
    for bug in (
        sweep_markers_in_the_pass_of_their_data,
        wait_for_markers_that_were_swept,
        let_aborted_records_supersede,
        compact_with_half_of_the_outcomes,
        compact_what_is_not_decided,
    )
}
"""How each is planted. Found with all faults."""
COPY_BUGS: Final[dict[str, Callable[[Any], None]]] = {
    remove_null_values_ahead_of_a_copy.__name__: remove_null_values_ahead_of_a_copy
}
"""The same, where replicas move."""
