"""How a cluster's CA is replaced by another, step by step, by proof. Pure.

    SETTLED ─ another CA is asked for, and there ─▶ TRUSTING ─ all have loaded both ─▶ WAITING
    WAITING ─ clients have had time, too ─▶ RENEWING ─ all show a certificate of the new ─▶ DROPPING
    DROPPING ─ all trust the new one alone ─▶ REMOVING ─ nobody sees the old key ─▶ SETTLED

All are the servers: registered brokers and controllers, whether active or standing by. What they
report is what their TLS uses, not what lies in a file. A step is taken when nobody is left to wait
for, and never back: except that until the new CA signs, a rotation whose CA is taken away again is
given up. The two CAs are in two slots, which take turns.

The invariant, in every state and in the moment between any two of them: whoever shows a certificate
shows it to servers that trust the CA which signed it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, assert_never

from penstock.kubernetes.rotation import absent


class Slot(Enum):
    """Where a CA is. The value: what follows the cluster's name in that of its Secret."""

    FIRST = "ca"
    SECOND = "ca-2"

    @property
    def other(self) -> "Slot":
        return Slot.SECOND if self is Slot.FIRST else Slot.FIRST


class Phase(Enum):
    """See the module. The value is what the Cluster's status shows."""

    SETTLED = "Settled"
    TRUSTING = "TrustingBoth"
    WAITING = "WaitingForClients"
    RENEWING = "RenewingCertificates"
    DROPPING = "DroppingOld"
    REMOVING = "RemovingOldKey"


_BEFORE_IT_SIGNS: Final = frozenset({Phase.TRUSTING, Phase.WAITING})
_NEW_SIGNS: Final = frozenset({Phase.RENEWING, Phase.DROPPING, Phase.REMOVING})
_NEW_ALONE: Final = frozenset({Phase.DROPPING, Phase.REMOVING})
_NEXT: Final = {
    Phase.SETTLED: Phase.TRUSTING,
    Phase.TRUSTING: Phase.WAITING,
    Phase.WAITING: Phase.RENEWING,
    Phase.RENEWING: Phase.DROPPING,
    Phase.DROPPING: Phase.REMOVING,
    Phase.REMOVING: Phase.SETTLED,
}


@dataclass(frozen=True, slots=True)
class Rotation:
    """The state, which controllers share.

    Attributes:
        slot: Of the CA that signs, or of the old one while it is replaced.
        since_s: When the phase began, in seconds since 1970.
    """

    slot: Slot = Slot.FIRST
    phase: Phase = Phase.SETTLED
    since_s: float = 0.0

    @property
    def signer(self) -> Slot:
        """Of the CA that signs."""
        return self.slot.other if self.phase in _NEW_SIGNS else self.slot

    @property
    def trusted(self) -> tuple[Slot, ...]:
        """Of the CAs that are trusted; of two, the newer one last."""
        if self.phase is Phase.SETTLED:
            return (self.slot,)
        return (self.slot.other,) if self.phase in _NEW_ALONE else (self.slot, self.slot.other)

    @property
    def relied_on(self) -> tuple[Slot, ...]:
        """Of the CAs that servers have certificates of, or may have."""
        return (self.slot,) if self.phase in _BEFORE_IT_SIGNS else self.trusted


@dataclass(frozen=True, slots=True)
class Report:
    """What one process uses for TLS. CAs are known by fingerprints.

    Attributes:
        trusted: Whose certificates it accepts.
        issuer: Who signed its own certificate; "": a CA that it does not trust.
        keys: Of a controller: whose keys it could read.
        ends_s: When its own certificate does, in seconds since 1970; 0: it does not say.
    """

    trusted: frozenset[str]
    issuer: str
    keys: frozenset[str] = frozenset()
    ends_s: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the controller that decides knows.

    Attributes:
        now_s: Seconds since 1970.
        wait_s: For clients, which report nothing.
        asked: Somebody asks for another CA.
        authorities: Fingerprints of the CAs that it has.
        unseen: Those of them whose files have gone.
        servers: Each server, by its name for people; None: it has reported nothing yet.
    """

    now_s: float
    wait_s: float
    asked: bool
    authorities: Mapping[Slot, str]
    unseen: frozenset[Slot] = frozenset()
    servers: Mapping[str, Report | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """What follows. `waits`: for whom or what, in words; empty when a step was taken, or at
    rest."""

    rotation: Rotation
    waits: Sequence[str] = ()


def decide(rotation: Rotation, facts: Facts) -> Step:
    """The next state, or the same one and why."""
    old, new = rotation.slot, rotation.slot.other
    phase = rotation.phase
    if phase is Phase.SETTLED and not facts.asked:
        return Step(rotation, tuple(absent(slot.value) for slot in facts.unseen))
    if phase in _BEFORE_IT_SIGNS and not (facts.asked and new in facts.authorities):
        return Step(Rotation(old, Phase.SETTLED, facts.now_s))  # it was taken away again
    if waits := _absent(rotation, facts) or _behind(rotation, facts):
        return Step(rotation, waits)
    if phase is Phase.WAITING and rotation.since_s + facts.wait_s > facts.now_s:
        return Step(rotation, ("clients, which must have time to trust both CAs",))
    following = _NEXT[phase]
    slot = new if following is Phase.SETTLED else old
    return Step(Rotation(slot, following, facts.now_s))


def _absent(rotation: Rotation, facts: Facts) -> Sequence[str]:
    """Which CAs are needed, and not there."""
    old, new, found = rotation.slot, rotation.slot.other, facts.authorities
    needed = (new,) if rotation.phase in _NEW_ALONE else (old, new)
    if missing := [slot for slot in needed if slot not in found]:
        return tuple(absent(slot.value) for slot in missing)
    if len(needed) > 1 and found[old] == found[new]:
        return (f"another CA in Secret …-{new.value}, which has the same as …-{old.value}",)
    return ()


def _behind(rotation: Rotation, facts: Facts) -> Sequence[str]:
    """Which servers have not done yet what the phase asks for."""
    if rotation.phase is Phase.SETTLED:
        return ()
    old, new = (facts.authorities.get(slot, "") for slot in (rotation.slot, rotation.slot.other))
    return tuple(
        name
        for name, report in sorted(facts.servers.items())
        if report is None or not _has_done(rotation.phase, report, old, new)
    )


def _has_done(phase: Phase, report: Report, old: str, new: str) -> bool:
    match phase:
        case Phase.SETTLED:
            return True
        case Phase.TRUSTING | Phase.WAITING:
            return {old, new} <= report.trusted
        case Phase.RENEWING:
            return {old, new} <= report.trusted and report.issuer == new
        case Phase.DROPPING:
            return report.trusted == {new} and report.issuer == new
        case Phase.REMOVING:
            return report.trusted == {new} and report.keys <= {new}
        case _:
            assert_never(phase)
