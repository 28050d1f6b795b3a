"""Time that passes for a machine under a fake clock."""

from typing import Any


def pass_time(desk: Any, tick: Any, ms: int) -> list[Any]:
    """Feeds `tick` to the desk whenever its machine wants one; all outputs."""
    end_ms = desk.now_ms + ms
    outputs: list[Any] = []
    while desk.machine.next_wake_ms <= end_ms:
        desk.now_ms = max(desk.machine.next_wake_ms, desk.now_ms)
        outputs += desk.feed(tick).outputs
    desk.now_ms = end_ms
    return outputs
