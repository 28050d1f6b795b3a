"""A member of a pipe hears nothing while its offsets are on their way, and nobody else notices.

    member                                         coordinator
      store offsets ────✗ (a lull begins)            has heard of it a moment ago
      silence, a session long: gives up its partitions
      comes back (the lull is over) ────────────────▶ in time: it has them again, in the same epoch
      where to begin? ──────────────────────────────▶ as before: nothing is pending
      the offsets, tried again ─────────────────────▶ kept: for all that it knows, it never left

What was made of the records between is in the open transaction, and is about to be read again: so
it must not commit. Chance alone hardly ever brings this about; where it is wanted, nothing else
befalls members, and they have the time to wait for their offsets.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock_sim.coordinator import GROUP_CLOCK

if TYPE_CHECKING:
    from penstock_sim.members import MemberPlan, SimMember
    from penstock_sim.world import World

EVERY: Final = 7
"""In one of so many seeds with pipes."""
_REMAINDER: Final = 4
_AHEAD_MS: Final = 25
"""By so much at least the member's patience ends before its coordinator's."""
_ENDS_MS: Final = (-3, 8)
"""When the member gives up, more or less: it comes back at once, or never was away."""
_LONGEST_MS: Final = 230
"""By then the offsets are about to be tried again."""
_PAUSE_MS: Final = 60
_MAX_POLL_MS: Final = 4_000


class Lulls:
    """Of one history."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.scheduler.generator("lulls")
        self.is_wanted = world.seed % EVERY == _REMAINDER % EVERY
        self._next_ms = 0.0

    def patient(self, plan: MemberPlan) -> MemberPlan:
        """Else a member leaves by itself, because it does not poll."""
        return replace(plan, max_poll_ms=_MAX_POLL_MS) if self.is_wanted else plan

    def storing(self, member: SimMember) -> None:
        """Its offsets are about to be sent."""
        world = self._world
        if not self.is_wanted or not world.chaotic or world.scheduler.now_ms < self._next_ms:
            return
        heard_ms, said_ms = (ms / GROUP_CLOCK for ms in member.silence_ms)
        lasts_ms = member.plan.session_ms / GROUP_CLOCK - heard_ms + self._random.uniform(*_ENDS_MS)
        if heard_ms - said_ms < _AHEAD_MS or not 0 < lasts_ms < _LONGEST_MS:
            return
        self._next_ms = world.scheduler.now_ms + lasts_ms + _PAUSE_MS
        ways = {(member.node, int(broker)) for broker in world.brokers}
        ways |= {(broker, node) for node, broker in ways}
        world.scheduler.note("net", "lull", member.name, lasts_ms)
        world.net.blocked |= ways
        world.scheduler.after(lasts_ms, world.net.blocked.difference_update, ways)
