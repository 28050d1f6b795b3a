"""How a worker pool handles records."""

from dataclasses import dataclass
from typing import Literal

from penstock.errors import MisuseError


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """How records are handled.

    Attributes:
        workers: How many handlers run at once, 1 to 1,000.
        order: "key": records of the same key one after the other, those without a key in any order.
            "partition": all records of a partition one after the other.
        queued_max: Maximum number of records taken and not finished; at least `workers`. Ten times
            as many are taken of a partition behind one that is not finished, then no more until it
            is: they cannot be committed before it.
        retries: How often a handler that raised is called again, 0 = never.
        backoff_ms: Pause before the first retry; doubles up to `backoff_max_ms`.
        backoff_max_ms: The longest pause; at least `backoff_ms`.
        dead_letter_topic: Where records go that failed `retries` + 1 times, with headers that say
            where they come from and why; it must exist. "" = the pool stops instead.
        commit_interval_ms: How often finished records are committed.
        drain_ms: How long to wait for running handlers when partitions are revoked, or at the end.
    """

    workers: int = 8
    order: Literal["key", "partition"] = "key"
    queued_max: int = 1_000
    retries: int = 3
    backoff_ms: int = 100
    backoff_max_ms: int = 10_000
    dead_letter_topic: str = ""
    commit_interval_ms: int = 1_000
    drain_ms: int = 30_000

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= 1_000:
            raise MisuseError(f"workers is {self.workers}; it must be 1 to 1,000")
        if self.order not in ("key", "partition"):
            raise MisuseError(f"order is {self.order!r}; use 'key' or 'partition'")
        if self.queued_max < self.workers:
            raise MisuseError(
                f"queued_max is {self.queued_max}; it must be at least workers ({self.workers})"
            )
        for name in ("retries", "backoff_ms", "drain_ms"):
            if getattr(self, name) < 0:
                raise MisuseError(f"{name} is {getattr(self, name)}; it must be 0 or more")
        if self.commit_interval_ms < 1 or self.backoff_max_ms < self.backoff_ms:
            raise MisuseError("commit_interval_ms must be 1 or more, backoff_max_ms >= backoff_ms")
