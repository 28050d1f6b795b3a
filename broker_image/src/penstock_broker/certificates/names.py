"""Whom a certificate of a cluster's server is about.

    spiffe://penstock/<cluster id>/broker/<n>       spiffe://penstock/<cluster id>/controller

The form is SPIFFE's, as a URI in the certificate's subject alternative name (SPIFFE-ID.md §2,
X509-SVID.md §2). Rules and logs show it as it is.
"""

import re
from dataclasses import dataclass
from typing import Final

from penstock.core.types import BrokerId

TRUST_DOMAIN: Final = "penstock"
_BROKER: Final = re.compile(r"spiffe://penstock/([A-Za-z0-9._-]{1,64})/broker/(\d{1,10})")
_CONTROLLER: Final = re.compile(r"spiffe://penstock/([A-Za-z0-9._-]{1,64})/controller")
_BROKER_ID_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ServerName:
    """A broker of a cluster, or (`broker_id` None) a controller of it."""

    cluster_id: str
    broker_id: BrokerId | None

    @property
    def uri(self) -> str:
        """As it stands in a certificate."""
        who = "controller" if self.broker_id is None else f"broker/{self.broker_id}"
        return f"spiffe://{TRUST_DOMAIN}/{self.cluster_id}/{who}"

    @classmethod
    def parse(cls, uri: str) -> "ServerName | None":
        """None: the URI names no server of a cluster."""
        if found := _CONTROLLER.fullmatch(uri):
            return cls(found[1], None)
        if (found := _BROKER.fullmatch(uri)) and int(found[2]) <= _BROKER_ID_MAX:
            return cls(found[1], BrokerId(int(found[2])))
        return None
