"""Reads that end: how far they are, and when nothing more will come.

    ends ─▶ is_over? ◀── positions, after each poll
              └─ nothing came for SILENT_S ─▶ UnreachableError: a cluster that died answers nobody

Silence is counted in polls, not by a clock: a program that was stopped, or whose reader takes its
time, has not waited.
"""

from typing import TYPE_CHECKING, Final

from penstock.errors import PenstockError, UnreachableError

if TYPE_CHECKING:
    from penstock.client import Consumer
    from penstock.core.types import TopicPartition

POLL_S: Final = 1.0
SILENT_S: Final = 30.0
"""As the time-out of a client's requests."""


class Bounded:
    """Of one consumer. `ends`: exclusive, by assigned partition; they may change."""

    def __init__(
        self,
        consumer: "Consumer",
        ends: "dict[TopicPartition, int]",
        *,
        to_come: bool = False,
    ) -> None:
        """`to_come`: an end may lie past the end of the log, until somebody writes there."""
        self.ends = ends
        self._consumer = consumer
        self._to_come = to_come
        self._left: dict[TopicPartition, int] = {}
        self._silent_s = 0.0

    def is_over(self) -> bool:
        """Whether all is read. Called after each poll of POLL_S. Raises UnreachableError."""
        positions = {one: self._consumer.position(one) for one in self.ends}
        left = {one: at for one, at in positions.items() if at < self.ends[one]}
        self._silent_s = self._silent_s + POLL_S if left == self._left else 0.0
        self._left = left
        if left and self._silent_s >= SILENT_S:
            if not self._to_come or self._has_more():
                raise self._silence()
            self._silent_s = 0.0
        return not left

    def _has_more(self) -> bool:
        """Whether there is something to read, or nobody says."""
        try:
            lag = self._consumer.lag()
        except PenstockError:
            return True
        return any(lag.get(one) for one in self._left)

    def _silence(self) -> UnreachableError:
        where, position = min(self._left.items())
        others = len(self._left) - 1
        return UnreachableError(
            f"{where} gave nothing at offset {position} for {SILENT_S:g} s, and is to be read up "
            f"to offset {self.ends[where]}"
            + (f"; nor did {others} others" if others else "")
            + "; check that it has a leader: penstock topic describe "
            + where.topic
        )
