"""What the damage of a partition's replicas means for its clients, in words, and what to do.

    mended   a sound member leads, or may: what is damaged comes from the others
    waits    nobody may lead: the sound members, who may have every record, do not run
    alone    every member of the ISR is damaged: what none of the replicas has is lost

The same judgement whether a partition comes from the controller's documents or from its answer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from penstock.core.types import NO_LEADER


class Damage(StrEnum):
    """How bad it is, the least first."""

    MENDED = "mended"
    WAITS = "waits"
    ALONE = "alone"


@dataclass(frozen=True, slots=True)
class DamagedPartition:
    """A partition some of whose replicas are known as damaged; `leader` -1: none."""

    topic: str
    partition: int
    leader: int
    isr: tuple[int, ...]
    damaged: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.partition}"

    @property
    def sound(self) -> tuple[int, ...]:
        """Members of the ISR of whom no damage is known."""
        return tuple(one for one in self.isr if one not in self.damaged)

    @property
    def kind(self) -> Damage:
        if not self.sound:
            return Damage.ALONE
        return Damage.WAITS if self.leader == NO_LEADER else Damage.MENDED

    @property
    def text(self) -> str:
        """A sentence without its full stop."""
        replica = f"the replica of {self.name} on {named(self.damaged)} is damaged"
        match self.kind:
            case Damage.MENDED:
                return f"{replica}: it is mended from the others, or copied again"
            case Damage.WAITS:
                return (
                    f"{self.name} has no leader: the replica on {named(self.damaged)} is damaged, "
                    f"and waits for {named(self.sound)}, which may have every record"
                )
            case Damage.ALONE:
                return (
                    f"{replica}, and no sound one is in sync: what cannot be read there is an "
                    "error, and lost unless another replica has it"
                )

    @property
    def remedy(self) -> str:
        """What a person can do; empty: nothing, it goes on by itself."""
        match self.kind:
            case Damage.MENDED:
                return ""
            case Damage.WAITS:
                return (
                    f"start {named(self.sound)}; if no volume of them will ever be back, replace "
                    "each by an empty one, and what the damaged replica has is served"
                )
            case Damage.ALONE:
                return (
                    "start the brokers that are down; `penstock partitions accept-loss` shows what "
                    "nobody has, and gives it up by name"
                )


def worst_first(found: Iterable[DamagedPartition]) -> list[DamagedPartition]:
    """As they are shown: where only some have room, these are the ones."""
    worst = list(Damage)
    return sorted(found, key=lambda one: (-worst.index(one.kind), one.topic, one.partition))


def named(brokers: Sequence[int]) -> str:
    """`broker 1`, `brokers 1, 2`."""
    return f"{'broker' if len(brokers) == 1 else 'brokers'} {', '.join(map(str, brokers))}"
