"""A member of a pipe gets no messages while its offsets are in flight, and no other process
notices.

    member                                         coordinator
      store offsets ────✗ (a lull begins)            got its heartbeat just before
      silence, a session long: gives up its partitions
      comes back (the lull is over) ────────────────▶ in time: it has them again, in the same epoch
      where to begin? ──────────────────────────────▶ as before: nothing is pending
      the offsets, tried again ─────────────────────▶ kept: for all that it knows, it never left

Results of the records in between are in the open transaction, and the records are about to be read
again: so it must not commit. Chance alone rarely causes this; in histories that want it, members
have no other faults, and have the time to wait for their offsets.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock_sim.scheduler import RATE

if TYPE_CHECKING:
    from penstock_sim.members import MemberPlan, SimMember
    from penstock_sim.world import World

EVERY: Final = 7
"""In one of this many seeds with pipes."""
_REMAINDER: Final = 4
_AHEAD_MS: Final = 25
"""The member's patience ends at least this long before its coordinator's."""
_ENDS_MS: Final = (-3, 8)
"""When the member gives up, relative to the end: it comes back at once, or never left."""
_LONGEST_MS: Final = 230
"""After this, the offsets are about to be retried."""
_PAUSE_MS: Final = 60
_MAX_POLL_MS: Final = 8_000


class Lulls:
    """The lulls of one history."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.scheduler.generator("lulls")
        self.is_wanted = world.seed % EVERY == _REMAINDER % EVERY
        self._next_ms = 0.0

    def patient(self, plan: MemberPlan) -> MemberPlan:
        """Without this, a member leaves by itself, because it does not poll."""
        return replace(plan, max_poll_ms=_MAX_POLL_MS) if self.is_wanted else plan

    def storing(self, member: SimMember) -> None:
        """A member's offsets are about to be sent."""
        world = self._world
        if not self.is_wanted or not world.chaotic or world.scheduler.now_ms < self._next_ms:
            return
        heard_ms, said_ms = (ms / RATE for ms in member.silence_ms)
        lasts_ms = member.plan.session_ms / RATE - heard_ms + self._random.uniform(*_ENDS_MS)
        if heard_ms - said_ms < _AHEAD_MS or not 0 < lasts_ms < _LONGEST_MS:
            return
        self._next_ms = world.scheduler.now_ms + lasts_ms + _PAUSE_MS
        ways = {(member.node, int(broker)) for broker in world.brokers}
        ways |= {(broker, node) for node, broker in ways}
        world.scheduler.note("net", "lull", member.name, lasts_ms)
        world.net.blocked |= ways
        world.scheduler.after(lasts_ms, world.net.blocked.difference_update, ways)
