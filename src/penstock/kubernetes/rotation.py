"""How far the replacement of a cluster's CA is, as controllers write it down for others. Pure.

It is an annotation of ConfigMap `<cluster>-trust`, as JSON: the operator shows it in the Cluster's
status, and controllers go on from it.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from penstock.kubernetes.names import ROTATION
from penstock.kubernetes.resources import Json

SETTLED: Final = "Settled"
"""The phase in which no CA is replaced."""


@dataclass(frozen=True, slots=True)
class RotationState:
    """Phases are those of `penstock_broker.certificates.rotation`.

    Attributes:
        secret: What follows the cluster's name in that of the Secret with the CA; while it is
            replaced, with the old one.
        since_s: When the phase began, in seconds since 1970.
        waits: For whom or what, in words.
    """

    phase: str
    secret: str
    since_s: float
    waits: tuple[str, ...] = ()

    @property
    def is_lost(self) -> bool:
        """Whether the Secret of the CA in use is gone, and controllers have the CA in memory."""
        return self.phase == SETTLED and absent(self.secret) in self.waits

    def text(self) -> str:
        """As an annotation."""
        since = datetime.fromtimestamp(self.since_s, UTC)
        state = {
            "phase": self.phase,
            "secret": self.secret,
            "since": f"{since:%Y-%m-%dT%H:%M:%SZ}",
            "waitsFor": self.waits,
        }
        return json.dumps(state, sort_keys=True)


def absent(secret: str) -> str:
    """What is waited for where a CA is needed, in words. `secret`: what follows the Cluster's name
    in that of the Secret."""
    return f"Secret …-{secret}, which is not there"


def rotation_of(config_map: Json) -> RotationState | None:
    """None: nothing that can be read; a CA that was never replaced has nothing."""
    text = (config_map["metadata"].get("annotations") or {}).get(ROTATION, "")
    try:
        state = json.loads(text)
        since = datetime.fromisoformat(state["since"]).timestamp()
        waits = tuple(map(str, state["waitsFor"]))
        return RotationState(str(state["phase"]), str(state["secret"]), since, waits)
    except (ValueError, TypeError, KeyError):
        return None
