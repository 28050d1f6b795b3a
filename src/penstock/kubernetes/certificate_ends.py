"""When the certificates of a cluster's servers end, as controllers write it down for others. Pure.

An annotation of ConfigMap `<cluster>-trust`, as JSON by server:

    {"broker 0": {"ends": "2026-12-20T10:00:00Z"},
     "controller flights-controller-7d9-x2": {"ends": "…", "seen": "2026-11-26"}}

The active controller knows the brokers by their heartbeats. Each controller writes its own row, and
once a day that it still runs: a pod that is gone takes its row with it two days later, long before
a certificate that was renewed in time could be warned of.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

from penstock.kubernetes.names import CERTIFICATE_ENDS
from penstock.kubernetes.resources import Json

_GONE_AFTER: Final = timedelta(days=2)


@dataclass(frozen=True, slots=True)
class CertificateEnd:
    """Of one server. `at_s`: seconds since 1970. `seen`: of a controller: the day it wrote this."""

    at_s: int
    seen: date | None = None

    @property
    def at(self) -> str:
        """RFC 3339."""
        return f"{datetime.fromtimestamp(self.at_s, UTC):%Y-%m-%dT%H:%M:%SZ}"


def merged(
    before: Mapping[str, CertificateEnd],
    brokers: Mapping[str, int | None] | None,
    own: tuple[str, int],
    today: date,
) -> Mapping[str, CertificateEnd]:
    """What one controller writes, over what is there.

    Args:
        brokers: Each registered broker's end in seconds since 1970; 0: its release does not say;
            None: it has said nothing to this controller, so what it said to another one stays.
            None of all: another controller decides.
        own: The name and end of the controller that writes.
    """
    rows = {
        name: row
        for name, row in before.items()
        if (row.seen is None and brokers is None)
        or (row.seen is not None and today - row.seen <= _GONE_AFTER)
    }
    for name, at_s in (brokers or {}).items():
        if at_s:
            rows[name] = CertificateEnd(at_s)
        elif at_s is None and name in before:
            rows[name] = before[name]
    name, at_s = own
    return {**rows, name: CertificateEnd(at_s, today)}


def current(ends: Mapping[str, CertificateEnd], today: date) -> Mapping[str, CertificateEnd]:
    """Empty if no controller still writes it, such as one of an older release."""
    days = [row.seen for row in ends.values() if row.seen is not None]
    return ends if days and today - max(days) <= _GONE_AFTER else {}


def soonest(ends: Mapping[str, CertificateEnd]) -> tuple[str, CertificateEnd] | None:
    """The first to end, and whose it is; None: nothing is known."""
    return min(ends.items(), key=lambda one: (one[1].at_s, one[0]), default=None)


def ends_text(ends: Mapping[str, CertificateEnd]) -> str:
    """As an annotation; empty: there is none."""
    rows = {
        name: {"ends": row.at} | ({"seen": row.seen.isoformat()} if row.seen else {})
        for name, row in ends.items()
    }
    return json.dumps(rows, sort_keys=True) if rows else ""


def ends_in(config_map: Json) -> Mapping[str, CertificateEnd]:
    """Empty: nothing that can be read; it is written again."""
    text = (config_map["metadata"].get("annotations") or {}).get(CERTIFICATE_ENDS, "")
    try:
        return {str(name): _row(row) for name, row in json.loads(text).items()}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return {}


def _row(row: Mapping[str, str]) -> CertificateEnd:
    seen = date.fromisoformat(row["seen"]) if "seen" in row else None
    return CertificateEnd(int(datetime.fromisoformat(row["ends"]).timestamp()), seen)
