"""Bugs put into how a cluster goes to sleep, in brokers, controllers and the operator (I39)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from penstock.core.control import isr
from penstock.core.control.draft import Draft
from penstock_broker.metadata.image import ClusterView
from penstock_broker.services.quiescence import Quiescence
from penstock_operator.plan import hibernate
from penstock_operator.resting import Quiet
from penstock_sim.planted_moving import in_function
from penstock_sim.planted_shells import all_of, in_text

HIBERNATION_BUGS: Final[dict[str, Callable[[Any], None]]] = {
    "acknowledge_while_it_hibernates": in_text(
        ClusterView, "refusal", "if not self.hibernating:", "if True:"
    ),
    "quiet_without_an_fsync": in_text(Quiescence, "describe", "self._writer.sync()", "pass"),
    "believe_the_first_answer": in_text(
        Quiet, "proven", "return before == self._answers", "return True"
    ),
    "elect_while_it_hibernates": in_text(
        Draft, "settled", "decide = rest if self.cluster.hibernating else settle", "decide = settle"
    ),
    "shrink_an_isr_while_it_hibernates": in_function(
        isr._alter_one, "if draft.cluster.hibernating:", "if False:"
    ),
    "sleep_again_before_it_has_woken": all_of(
        in_function(
            hibernate._wakes,
            "again = observed.rest.record.stage in _WAKES",
            "again = observed.rest.record.stage is Stage.STARTING",
        ),
        in_function(
            hibernate._going, "held = facts is not None and facts.hibernating", "held = False"
        ),
    ),
}
"""For histories in which a cluster is put to sleep."""
