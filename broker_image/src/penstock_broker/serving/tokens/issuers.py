"""Whose tokens are believed, and with which keys: one JSON file.

    {"issuers": [{"issuer": "https://…", "audience": "penstock.etl.flights", "kind": "kubernetes",
                  "jwks": {"keys": […]}}]}

`kind` "kubernetes": tokens of ServiceAccounts. "oidc": of people, with `usernameClaim` ("sub") and
`groupsClaim` (none). A key fixes its algorithm, so that no token chooses one (RFC 8725, 3.1): RSA
from 2048 bits is RS256, P-256 is ES256, others are left out. Pure.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from penstock.errors import ErrorCode, MisuseError

Kind: TypeAlias = Literal["kubernetes", "oidc"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
FILE_BYTES_MAX: Final = 1024 * 1024
NAME_LENGTH_MAX: Final = 512
"""Of issuers, audiences, claims and key ids."""
RSA_BITS_MIN: Final = 2048
_PUBLIC_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "RSA": ("kty", "kid", "n", "e"),
    "EC": ("kty", "kid", "crv", "x", "y"),
}
_ALGORITHMS: Final[Mapping[str, str]] = {"RSA": "RS256", "EC": "ES256"}


@dataclass(frozen=True, slots=True)
class Key:
    """A public key, and the one algorithm for which it counts. `parts` identify it."""

    algorithm: str
    parts: tuple[str, ...]
    public: Any = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Issuer:
    """One issuer, the audience its tokens must have here, and its keys by their ids.

    Attributes:
        keys: Empty: not known yet.
        groups_claim: Names a list of groups in a token; empty: groups do not count.
    """

    issuer: str
    audience: str
    kind: Kind
    keys: Mapping[str, Key]
    username_claim: str
    groups_claim: str

    def basis(self, key_id: str) -> "Basis":
        """All that a token checked with this key depends on; None in it: the key is gone."""
        key = self.keys.get(key_id)
        return (self.audience, self.kind, self.username_claim, self.groups_claim, key)


Basis: TypeAlias = tuple[str, Kind, str, str, Key | None]

Issuers: TypeAlias = Mapping[str, Issuer]
"""By the text of the claim `iss`."""


def parse_issuers(text: bytes) -> Issuers:
    """Raises MisuseError(INVALID_CONFIG), which says what is wrong and where."""
    if len(text) > FILE_BYTES_MAX:
        raise _wrong(f"it has {len(text)} bytes; at most {FILE_BYTES_MAX} are read")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _wrong(f"it is not JSON: {error}") from None
    entries = document.get("issuers") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise _wrong('it must be an object with a list "issuers"')
    found: dict[str, Issuer] = {}
    for number, entry in enumerate(entries):
        issuer = _issuer(entry, f"issuers[{number}]")
        for other in found:
            _refuse_confusion(issuer.issuer, other)
        found[issuer.issuer] = issuer
    return found


def _issuer(entry: object, where: str) -> Issuer:
    if not isinstance(entry, dict):
        raise _wrong(f"{where} is not an object")
    kind = entry.get("kind")
    if kind not in KINDS:
        raise _wrong(f"{where}.kind is {kind!r}; known are {', '.join(KINDS)}")
    return Issuer(
        issuer=_text(entry, "issuer", where),
        audience=_text(entry, "audience", where),
        kind=kind,
        keys=_keys(entry.get("jwks"), where),
        username_claim=_text(entry, "usernameClaim", where, "sub"),
        groups_claim=_text(entry, "groupsClaim", where, ""),
    )


def _text(entry: dict[str, Any], key: str, where: str, default: str | None = None) -> str:
    value = entry.get(key, default)
    if not isinstance(value, str) or len(value) > NAME_LENGTH_MAX or (not value and default != ""):
        raise _wrong(f"{where}.{key} must be a text of 1 to {NAME_LENGTH_MAX} characters")
    return value


def _keys(jwks: object, where: str) -> Mapping[str, Key]:
    listed = jwks.get("keys") if isinstance(jwks, dict) else None
    if not isinstance(listed, list):
        raise _wrong(f'{where}.jwks must be an object with a list "keys"')
    keys: dict[str, Key] = {}
    for number, entry in enumerate(listed):
        place = f"{where}.jwks.keys[{number}]"
        if not isinstance(entry, dict):
            raise _wrong(f"{place} is not an object")
        key = _key(entry, place)
        if key is None:
            continue
        key_id = _text(entry, "kid", place)
        if key_id in keys:
            raise _wrong(f"{place}.kid {key_id!r} is there twice")
        keys[key_id] = key
    return keys


def _key(entry: dict[str, Any], place: str) -> Key | None:
    """None: of a kind, or for a use, that does not count here."""
    kind = entry.get("kty")
    algorithm = _ALGORITHMS.get(kind) if isinstance(kind, str) else None
    if algorithm is None or entry.get("alg", algorithm) != algorithm:
        return None
    if entry.get("use", "sig") != "sig" or (kind == "EC" and entry.get("crv") != "P-256"):
        return None
    parts = {part: entry[part] for part in _PUBLIC_PARTS[str(kind)] if part in entry}
    try:
        public = PyJWK(parts, algorithm).key
    except (PyJWTError, ValueError, TypeError) as error:
        raise _wrong(f"{place} is not a usable public key: {error}") from None
    if isinstance(public, RSAPublicKey) and public.key_size < RSA_BITS_MIN:
        return None
    return Key(algorithm, tuple(str(value) for value in parts.values()), public)


def _refuse_confusion(one: str, other: str) -> None:
    """`oidc:<issuer>/<subject>` must name one user only, whatever subjects an issuer gives."""
    if one == other:
        raise _wrong(f"issuer {one!r} is there twice; each may have one audience")
    if f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/"):
        raise _wrong(
            f"issuer {one!r} and issuer {other!r} begin alike: their users could not be told apart"
        )


def _wrong(what: str) -> MisuseError:
    return MisuseError(what, ErrorCode.INVALID_CONFIG)
