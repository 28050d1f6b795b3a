"""How far a rotation of the CA is, and what controllers report, as text in a ConfigMap. Pure.

annotations  penstock.dev/ca-rotation    the state that controllers share, for people, too
             penstock.dev/ca-reports     what controllers use, while a CA is replaced
             penstock.dev/certificate-ends   when the certificate of each server ends
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from penstock.kubernetes.certificate_ends import CertificateEnd, ends_in, ends_text
from penstock.kubernetes.names import (
    CERTIFICATE_ENDS,
    GROUP,
    ROTATE_CA_WAIT,
    ROTATION,
    TRUST_KEY,
)
from penstock.kubernetes.resources import Json
from penstock.kubernetes.rotation import RotationState, rotation_of
from penstock_broker.certificates.rotation import Phase, Report, Rotation, Slot

REPORTS: Final = f"{GROUP}/ca-reports"
WAIT_S: Final = 75 * 60.0
"""Longer than a connection lives (66 minutes and one of grace) and a kubelet takes to bring a
ConfigMap to a pod (two). A client has connected again by then, with the newest trust."""
_WAITS_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class Held:
    """A controller's report, and when it was written last, as text: it is written again to show
    that the controller still runs."""

    report: Report
    at: str


@dataclass(frozen=True, slots=True)
class Shown:
    """What the ConfigMap says. `rotation` None: nothing. `roots`: PEM; None: whatever is there.
    `ends`: by server, as people know it."""

    rotation: Rotation | None = None
    waits: Sequence[str] = ()
    reports: Mapping[str, Held] = field(default_factory=dict)
    roots: bytes | None = None
    ends: Mapping[str, CertificateEnd] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Seen:
    """One read. `owners`: the ConfigMaps that own the Secrets of CAs."""

    shown: Shown
    live: Json | None
    owners: Mapping[Slot, Json]

    def wait_s(self, slot: Slot) -> float:
        """How long clients have, as whoever asked for this CA wants it."""
        metadata = self.owners.get(slot, {}).get("metadata") or {}
        text = str((metadata.get("annotations") or {}).get(ROTATE_CA_WAIT, ""))
        return float(text) if text.isdecimal() else WAIT_S


def annotations_of(shown: Shown) -> dict[str, str]:
    """Empty: there is none. A CA that was never replaced is not worth one."""
    rotation = shown.rotation
    state = ""
    if rotation is not None and (rotation != Rotation() or shown.waits):
        waits = tuple(shown.waits[:_WAITS_SHOWN])
        if more := len(shown.waits) - len(waits):
            waits = (*waits, f"{more} more")
        state = RotationState(
            rotation.phase.value, rotation.slot.value, rotation.since_s, waits
        ).text()
    reports = {
        name: {
            "at": held.at,
            "keys": sorted(held.report.keys),
            "ownCa": held.report.issuer,
            "trusted": sorted(held.report.trusted),
        }
        for name, held in shown.reports.items()
    }
    return {
        ROTATION: state,
        REPORTS: json.dumps(reports, sort_keys=True) if reports else "",
        CERTIFICATE_ENDS: ends_text(shown.ends),
    }


def decoded(live: Json) -> Shown:
    """What cannot be read is as if it were not there: it is written again."""
    annotations = live["metadata"].get("annotations") or {}
    rotation: Rotation | None = None
    waits: tuple[str, ...] = ()
    if (state := rotation_of(live)) is not None:
        with suppress(ValueError):
            rotation = Rotation(Slot(state.secret), Phase(state.phase), state.since_s)
            waits = state.waits
    roots = str((live.get("data") or {}).get(TRUST_KEY) or "").encode()
    return Shown(rotation, waits, _reports(annotations.get(REPORTS, "")), roots, ends_in(live))


def _reports(text: str) -> dict[str, Held]:
    try:
        return {
            str(name): Held(
                Report(
                    frozenset(map(str, each["trusted"])),
                    str(each["ownCa"]),
                    frozenset(map(str, each["keys"])),
                ),
                str(each["at"]),
            )
            for name, each in json.loads(text).items()
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}
