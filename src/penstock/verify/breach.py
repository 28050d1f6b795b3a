"""A broken guarantee, and how a checker reports it: shared by all checks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

EXAMPLES_MAX: Final = 10

ReportBreach = Callable[[str, int, str], None]
"""(rule, how many records, an example in words); called as often as the rule is broken."""


@dataclass(slots=True)
class Breach:
    """One broken rule: how many records, and the first few of them in words."""

    records: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, records: int, example: str) -> None:
        self.records += records
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(example)
