"""What a controller counts, for its metrics."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Counts for metrics, since the start of the process."""

    writes: int = 0
    write_conflicts: int = 0
    write_unknowns: int = 0
    write_seconds: float = 0.0
    elections: Counter[str] = field(default_factory=Counter)
    events: int = 0
