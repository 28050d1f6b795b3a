"""`spec.security.oidc`: other issuers whose tokens let people in (OpenID Connect). Pure.

row ─▶ OidcIssuer ─▶ the operator hands it to controllers, which fetch the issuer's keys
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final
from urllib.parse import urlsplit

from penstock.core.manifest.fields import Values
from penstock.core.manifest.problems import Report
from penstock.core.manifest.rows import Field, Kind

FIELD: Final = "oidc"
ISSUERS_MAX: Final = 8
_CLAIM: Final = r"[-A-Za-z0-9_.:/]+"
_CLAIM_DOC: Final = "letters, digits and any of '-_.:/'"

OIDC: Final = Field(
    name=FIELD,
    kind=Kind.OBJECTS,
    doc="Issuers (OpenID Connect) whose tokens let people in, besides those of ServiceAccounts. "
    "Controllers fetch their keys. Principals are oidc:<issuer>/<name> and "
    "oidc-group:<issuer>/<group>.",
    max_items=ISSUERS_MAX,
    fields=(
        Field(
            name="issuer",
            kind=Kind.TEXT,
            doc="Its address, exactly as in the tokens' claim iss.",
            required=True,
            max_length=256,
            pattern=r"https://[-A-Za-z0-9._~:/%]+",
            pattern_doc="an https address without a query",
        ),
        Field(
            name="audience",
            kind=Kind.TEXT,
            doc="What the tokens' claim aud must have: a client id that this Cluster alone has.",
            required=True,
            max_length=256,
            pattern=r"[!-~]+",
            pattern_doc="printable characters without spaces",
        ),
        Field(
            name="usernameClaim",
            kind=Kind.TEXT,
            doc="The claim with the user's name; absent = sub. Others can perhaps be chosen or "
            "given again by the issuer's users: ask who runs it.",
            max_length=128,
            pattern=_CLAIM,
            pattern_doc=_CLAIM_DOC,
        ),
        Field(
            name="groupsClaim",
            kind=Kind.TEXT,
            doc="The claim with the user's groups; absent = groups do not count.",
            max_length=128,
            pattern=_CLAIM,
            pattern_doc=_CLAIM_DOC,
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class OidcIssuer:
    """`groups_claim` empty = groups do not count."""

    issuer: str
    audience: str
    username_claim: str = "sub"
    groups_claim: str = ""


def issuers_from_values(security: Values | None) -> tuple[OidcIssuer, ...]:
    """Of `spec.security`."""
    entries = () if security is None else security.objects(FIELD) or ()
    return tuple(
        OidcIssuer(
            each.text("issuer"),
            each.text("audience"),
            each.text("usernameClaim") or "sub",
            each.text("groupsClaim"),
        )
        for each in entries
    )


def check_issuers(issuers: Sequence[OidcIssuer], *, strict: bool, report: Report) -> None:
    """What rows cannot say: they are asked, and their users can be told apart."""
    path = f"spec.security.{FIELD}"
    if issuers and not strict:
        report.add(
            path,
            "needs spec.security.mode Strict or Migrate: otherwise nobody is asked for a token",
        )
    for each in issuers:
        if not _is_address(each.issuer):
            report.add(
                path,
                f"has an issuer that cannot be asked: {each.issuer!r} is no address; give a host, "
                "and a port of at most 65535 or none",
            )
    for one, other in combinations(issuers, 2):
        first, second = f"{one.issuer}/", f"{other.issuer}/"
        if first.startswith(second) or second.startswith(first):
            report.add(
                path,
                f"has {one.issuer!r} and {other.issuer!r}, which are the same or begin alike: "
                "their users could not be told apart",
            )
            return


def _is_address(issuer: str) -> bool:
    """As controllers see it, which would not start with another."""
    try:
        parts = urlsplit(issuer)
        _ = parts.port
    except ValueError:
        return False
    return bool(parts.hostname)
