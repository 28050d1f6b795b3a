"""Bugs put into the fence of operators, on both sides: whoever was frozen acts once more (I35)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from penstock.core.control import fencing
from penstock_operator.lease import Leadership
from penstock_sim.planted_moving import in_function
from penstock_sim.planted_shells import all_of, in_text

LEASE_LOOKS: Final[dict[str, Callable[[Any], None]]] = {
    "ask_without_renewing": in_text(
        Leadership,
        "renewed",
        "held = await self._still_held()",
        "held = self._taken",
    ),
    "give_for_any_lease": in_function(
        fencing.decide_acquire, "if stored is not None:", "if False:"
    ),
}
"""An operator renews its Lease before it asks; the controller gives no epoch for a Lease that
others have had since. A bug is found soon only if both forget it: a controller that alone does is
fooled only by who freezes in between, and learns of its loss later than it changes something."""
OPERATOR_POD_BUGS: Final[dict[str, Callable[[Any], None]]] = {
    "accept_an_older_operator_epoch": in_function(
        fencing.check_operator_epoch, "if epoch != current:", "if epoch > current:"
    ),
    "acquire_an_epoch_without_a_fresh_lease": all_of(*LEASE_LOOKS.values()),
}
"""For histories with operators of Kubernetes."""
