"""A clock whose two times the test moves: a wall clock that jumps, hours that pass."""

from penstock_broker.clock import SystemClock

DAY_MS = 24 * 3_600_000


class JumpingClock(SystemClock):
    """`passed_ms`: for both clocks; `ahead_ms`: for the wall clock alone."""

    def __init__(self) -> None:
        self.passed_ms = 0
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.passed_ms

    def right_ms(self) -> int:
        """What the wall clock would show."""
        return super().wall_ms() + self.passed_ms

    def wall_ms(self) -> int:
        return self.right_ms() + self.ahead_ms

    def jump_with_the_controllers(self, ahead_ms: int) -> None:
        """As if both were of one node. Until now they have agreed."""
        self.wall.told(self.wall_ms())
        self.ahead_ms = ahead_ms
        self.wall.told(self.wall_ms())
