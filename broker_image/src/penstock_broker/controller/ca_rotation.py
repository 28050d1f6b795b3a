"""A controller's part in the rotation of the CA: look, use, report; the active one also decides.

    Secrets (mounted) ─┐                       ┌─▶ own certificate, and what it trusts
    ConfigMap ─ read ──┼─▶ look, every 5 s ────┼─▶ its report, in the ConfigMap
    brokers' reports ──┘   (at rest 20 s)      └─▶ the next state (`certificates.rotation`)

All state is in the ConfigMap, so whichever controller is active goes on where another one stopped.
While the API server is unavailable nothing moves. A report counts for as long as it is renewed: one
of a process that is gone neither holds up the rotation nor speaks for the next process. At rest
nothing is written, except once a day that a controller still runs: when its certificate and those
of the brokers end is there for the operator to show.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.core.types import BrokerId
from penstock.errors import ErrorCode, MisuseError
from penstock.kubernetes.certificate_ends import CertificateEnd, merged
from penstock.rpc.tls import Tls
from penstock_broker.certificates.authority import Authority
from penstock_broker.certificates.reports import report_of
from penstock_broker.certificates.rotation import (
    Facts,
    Phase,
    Report,
    Rotation,
    Slot,
    Step,
    decide,
)
from penstock_broker.controller.ca_state import Held, Seen, Shown
from penstock_broker.controller.enrolment_authority import (
    Authorities,
    OwnCertificate,
    fingerprint_of,
)
from penstock_broker.observability import EventLog

if TYPE_CHECKING:  # its client takes 25 MB, which local mode does not need
    from penstock_broker.controller.enrolment_trust import TrustMap

REST_S: Final = 20.0
MOVING_S: Final = 5.0
AGAIN_S: Final = 1.0
RENEW_S: Final = 30.0
FRESH_S: Final = 90.0
"""A report that was not renewed for so long is of a process that is gone, or cut off: then it is
not active, and will not be before it has read the state."""
Brokers: TypeAlias = Mapping[BrokerId, Report | None]
_events = EventLog("ca-rotation")


@dataclass(frozen=True, slots=True)
class ThisController:
    """This controller. `name`: of this run of the process. `controllers`: how many there are."""

    name: str
    controllers: int
    tls: Tls


class CaRotation:
    """Of one controller. Used by one thread at a time; `rotation` is read by others."""

    def __init__(
        self,
        rotation: Rotation,
        authorities: Authorities,
        own: OwnCertificate,
        now_s: Callable[[], float] = monotonic,
        today: Callable[[], date] = lambda: datetime.now(UTC).date(),
    ) -> None:
        self.rotation = rotation
        self._now_s, self._today = now_s, today
        self._authorities, self._own = authorities, own
        self._heard: dict[str, tuple[str, float]] = {}
        """Of each controller, when its report was written, and when that was seen here."""
        self._mine: Held | None = None
        self._mine_s = 0.0
        self._said: Step | None = None
        self._problem = ""

    def signer(self) -> Authority:
        """The CA that signs. Raises MisuseError."""
        return self._authorities.load(self.rotation.signer)

    def use(self, tls: Tls) -> Mapping[Slot, Authority]:
        """Trusts and shows what the state says, as far as this controller has the CAs. Returns
        those that it has."""
        found, problem = self._authorities.found(self.rotation.relied_on), ""
        try:
            if self._own.use(self.signer(), roots_of(self.rotation, found)):
                tls.look_now()
        except MisuseError as error:
            problem = error.message
        if problem and problem != self._problem:
            _events.warning("the own certificate stays as it is", reason=problem)
        self._problem = problem
        return found

    def look(self, this: ThisController, trust: "TrustMap", brokers: Brokers | None) -> float:
        """Blocks. `brokers` None: another controller decides. Returns after how many seconds to
        look again. Raises KubernetesError."""
        found = self.use(this.tls)  # the own certificate ages whether or not anybody answers
        seen = trust.read()
        if seen.shown.rotation not in {None, self.rotation}:
            self.rotation = seen.shown.rotation or self.rotation
            found = self.use(this.tls)
        reports = self._reports(seen, this, found)
        step = Step(self.rotation, seen.shown.waits)
        if brokers is not None:
            facts = _facts(self.rotation, seen, found, brokers, reports, this)
            step = decide(self.rotation, replace(facts, unseen=self._authorities.unseen))
            if self.rotation.phase is Phase.REMOVING:
                trust.release(seen, self.rotation.slot)
        self._say(step)
        moving = step.rotation.phase is not Phase.SETTLED
        try:
            roots = roots_of(step.rotation, found)
        except MisuseError:
            roots = None  # another controller sees what this one does not see yet
        told = reports if moving else {}
        ends = self._ends(seen, this, brokers)
        trust.write(seen, Shown(step.rotation, step.waits, told, roots, ends))
        if step.rotation != self.rotation:
            self.rotation = step.rotation
            self.use(this.tls)
            return AGAIN_S
        return MOVING_S if moving or step.waits else REST_S

    def _ends(
        self, seen: Seen, this: ThisController, brokers: Brokers | None
    ) -> Mapping[str, CertificateEnd]:
        said = None
        if brokers is not None:
            said = {
                f"broker {n}": None if one is None else one.ends_s for n, one in brokers.items()
            }
        own = f"controller {this.name.rpartition('_')[0]}", report_of(this.tls).ends_s
        return merged(seen.shown.ends, said, own, self._today())

    def _reports(
        self, seen: Seen, this: ThisController, found: Mapping[Slot, Authority]
    ) -> Mapping[str, Held]:
        """Those that still count, with this controller's own."""
        now_s = self._now_s()
        keys = frozenset(map(fingerprint_of, found.values()))
        report = replace(report_of(this.tls), keys=keys)
        mine = self._mine
        if mine is None or mine.report != report or now_s - self._mine_s >= RENEW_S:
            mine, self._mine_s = Held(report, datetime.now(UTC).isoformat()), now_s
            self._mine = mine
        others = {name: held for name, held in seen.shown.reports.items() if name != this.name}
        for name, held in others.items():
            if self._heard.get(name, ("", 0.0))[0] != held.at:
                self._heard[name] = (held.at, now_s)
        self._heard = {name: heard for name, heard in self._heard.items() if name in others}
        counts = {
            name: held for name, held in others.items() if now_s - self._heard[name][1] < FRESH_S
        }
        return {**counts, this.name: mine}

    def _say(self, step: Step) -> None:
        if step != (self._said or Step(Rotation())):
            waits = ", ".join(step.waits) or None
            _events.info("rotating the CA", phase=step.rotation.phase.value, waits_for=waits)
        self._said = step


def first_guess(found: Mapping[Slot, Authority]) -> Rotation:
    """When nobody has said which CA is in use: the only one, or the older one."""
    slots = sorted(found, key=lambda slot: (found[slot].begins, slot is Slot.SECOND))
    return Rotation(slots[0] if slots else Slot.FIRST)


def roots_of(rotation: Rotation, found: Mapping[Slot, Authority]) -> bytes:
    """The CAs that are trusted, PEM. Raises MisuseError if one is not seen here."""
    if missing := [slot.value for slot in rotation.trusted if slot not in found]:
        raise MisuseError(
            f"the CA of Secret …-{missing[0]} is trusted, and this controller does not see it",
            ErrorCode.INVALID_CONFIG,
        )
    return b"".join(found[slot].certificate for slot in rotation.trusted)


def _facts(
    rotation: Rotation,
    seen: Seen,
    found: Mapping[Slot, Authority],
    brokers: Brokers,
    reports: Mapping[str, Held],
    this: ThisController,
) -> Facts:
    servers: dict[str, Report | None] = {f"broker {n}": each for n, each in brokers.items()}
    servers |= {_for_people(name): held.report for name, held in reports.items()}
    if len(reports) < this.controllers:
        servers[f"controllers, of which {len(reports)} of {this.controllers} report"] = None
    new = rotation.slot.other
    return Facts(
        now_s=float(int(datetime.now(UTC).timestamp())),  # as it is written down
        wait_s=seen.wait_s(new),
        asked=new in seen.owners,
        authorities={slot: fingerprint_of(each) for slot, each in found.items()},
        servers=servers,
    )


def _for_people(name: str) -> str:
    """A controller's pod, and enough to tell two runs in it apart."""
    host, _, run = name.rpartition("_")
    return f"controller {host} ({run[:8]})"
