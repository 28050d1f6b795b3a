"""How fast topics may change: a bucket of partitions, as Kafka has for its controller (KIP-599).

A change of a topic writes all of its partitions to the metadata store, and is paid with as many
tokens. Whoever asks while none is left is refused, retriable; a change that is begun may take more
than there are, so that a large topic is never refused for ever.
"""

from typing import Final

from penstock.errors import OverloadedError

BURST_S: Final = 100
"""The bucket holds what this many seconds bring: a whole cluster's topics can be created at once,
and then no more than the rate."""


class MutationQuota:
    """Of one controller, in memory: another controller begins with a full bucket."""

    def __init__(self, per_second: int) -> None:
        """`per_second`: how many partitions' worth of changes a second brings."""
        self._per_second = per_second
        self._most_milli = per_second * BURST_S * 1000
        self._left_milli = self._most_milli
        self._filled_at_ms: int | None = None

    def check(self, now_ms: int) -> None:
        """Raises OverloadedError while nothing is left; it says how long to wait."""
        if self._filled_at_ms is not None:
            brought = (now_ms - self._filled_at_ms) * self._per_second
            self._left_milli = min(self._left_milli + brought, self._most_milli)
        self._filled_at_ms = now_ms
        if self._left_milli <= 0:
            wait_ms = -self._left_milli // self._per_second + 1
            raise OverloadedError(
                f"topics change too fast: {-self._left_milli // 1000} partitions more than the "
                f"limit of {self._per_second} per second (controller.mutation.rate) were created, "
                f"deleted or altered; try again in {wait_ms} ms, or raise the limit",
                throttle_ms=wait_ms,
            )

    def charge(self, partitions: int) -> None:
        """A change that writes this many partitions was decided."""
        self._left_milli -= partitions * 1000
