"""Who a token says its holder is, if an issuer that is believed has signed it. Pure.

    parse ─▶ issuer, key by their names ─▶ signature ─▶ audience ─▶ times ─▶ principal

Nothing that a token says counts before its signature has been checked, except which of our issuers
and keys to check it with. Errors say what is wrong, and never repeat the token.
"""

import math
import re
from dataclasses import dataclass
from typing import Any, Final

import jwt
from jwt.exceptions import InvalidSignatureError, PyJWTError

from penstock.errors import ClusterError, ErrorCode
from penstock_broker.serving.callers import LEEWAY_S
from penstock_broker.serving.tokens.issuers import Basis, Issuer, Issuers

TOKEN_BYTES_MAX: Final = 7 * 1024
"""gRPC refuses calls whose metadata has more than 8 KiB; a ServiceAccount's token has 1.1 KiB."""
GROUPS_MAX: Final = 200
NAME_LENGTH_MAX: Final = 256
"""Of users and groups in claims."""
_SHOWN_LENGTH_MAX: Final = 200
_TOKEN: Final = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)
_KUBERNETES_NAME: Final = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?", re.ASCII)


class UnknownKeyError(ClusterError):
    """UNAUTHENTICATED, unless the issuer has begun to sign with another key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What a token proves.

    Attributes:
        principal: "serviceaccount:etl/spark", "oidc:https://login.example/ada".
        groups: "oidc-group:<issuer>/<group>".
        expires_s: The claim `exp`, in seconds since 1970.
        issuer: Whose token it is, the claim `iss`.
        key_id: The key that it was checked with.
        basis: What it was believed for; it must still hold (`Issuer.basis`).
        pod: Name of the pod that a ServiceAccount's token is bound to; empty: to none.
        is_of_account: Whether it is a ServiceAccount's, which the API server has signed.
    """

    principal: str
    groups: tuple[str, ...] = ()
    expires_s: float
    issuer: str
    key_id: str
    basis: Basis
    pod: str = ""
    is_of_account: bool = False


def verified(token: str, issuers: Issuers, now_s: float) -> Verified:
    """`now_s`: seconds since 1970. Takes 0.2 ms, most of it for the signature.

    Raises ClusterError: UNAUTHENTICATED (UnknownKeyError for an unknown key), CREDENTIALS_EXPIRED;
    AUTH_NOT_READY while the issuer's keys are not known.
    """
    issuer, key_id = _signed_by(token, issuers)
    claims = _signed_claims(token, issuer, key_id)
    _check_audience(claims, issuer)
    expires_s = _check_times(claims, now_s)
    principal, pod = _holder(claims, issuer)
    return Verified(
        principal=principal,
        groups=_groups(claims, issuer),
        expires_s=expires_s,
        issuer=issuer.issuer,
        key_id=key_id,
        basis=issuer.basis(key_id),
        pod=pod,
        is_of_account=issuer.kind == "kubernetes",
    )


def _signed_by(token: str, issuers: Issuers) -> tuple[Issuer, str]:
    """Whose token it claims to be, and the id of one of this issuer's keys."""
    if len(token) > TOKEN_BYTES_MAX:
        raise _refused(f"it has {len(token)} bytes; at most {TOKEN_BYTES_MAX} are read")
    if not _TOKEN.fullmatch(token):
        raise _refused("it is not a signed JSON web token (three parts with dots between them)")
    try:
        parsed = jwt.decode_complete(token, options={"verify_signature": False})
    except (PyJWTError, ValueError, RecursionError):
        raise _refused("it is not a JSON web token") from None
    header, claimed = parsed["header"], parsed["payload"].get("iss")
    issuer = issuers.get(claimed) if isinstance(claimed, str) else None
    if issuer is None:
        raise _refused(
            f"its issuer is {_shown(claimed)}; this cluster believes "
            f"{', '.join(map(_shown, issuers)) or 'no issuer'}"
        )
    if not issuer.keys:
        raise ClusterError(
            f"the keys of issuer {issuer.issuer} are not known yet; try again",
            ErrorCode.AUTH_NOT_READY,
        )
    key_id = header.get("kid")
    key = issuer.keys.get(key_id) if isinstance(key_id, str) else None
    if key is None:
        raise UnknownKeyError(
            f"the token is refused: issuer {issuer.issuer} has no key with the id {_shown(key_id)}",
            ErrorCode.UNAUTHENTICATED,
        )
    if header.get("alg") != key.algorithm or "crit" in header:
        raise _refused(
            f"it names algorithm {_shown(header.get('alg'))}; with this key only {key.algorithm} "
            "counts"
        )
    assert isinstance(key_id, str)
    return issuer, key_id


def _signed_claims(token: str, issuer: Issuer, key_id: str) -> dict[str, Any]:
    key = issuer.keys[key_id]
    try:
        claims: dict[str, Any] = jwt.decode(
            token,
            key.public,
            algorithms=[key.algorithm],
            options={
                "require": ["exp"],
                "verify_aud": False,  # the clock and the words are ours, below
                "verify_exp": False,
                "verify_nbf": False,
                "verify_iat": False,
                "verify_iss": False,
                "verify_sub": False,
                "verify_jti": False,
            },
        )
    except InvalidSignatureError:
        raise _refused(f"issuer {issuer.issuer} has not signed it") from None
    except (PyJWTError, ValueError, RecursionError) as error:
        raise _refused(f"it cannot be used: {error}") from None
    return claims


def _check_audience(claims: dict[str, Any], issuer: Issuer) -> None:
    given = claims.get("aud")
    audiences = given if isinstance(given, list) else [given]
    if issuer.audience not in audiences:
        raise _refused(
            f"it is for audience {', '.join(map(_shown, audiences[:3]))}; this cluster is "
            f"{_shown(issuer.audience)}"
        )


def _check_times(claims: dict[str, Any], now_s: float) -> float:
    """When it expires."""
    expires_s = _time(claims, "exp")
    begins_s = _time(claims, "nbf") if "nbf" in claims else -math.inf
    if expires_s + LEEWAY_S <= now_s:
        raise expired(expires_s, now_s)
    if begins_s - LEEWAY_S > now_s:
        raise _refused(f"it is valid only in {begins_s - now_s:.0f} s, by this broker's clock")
    return expires_s


def _time(claims: dict[str, Any], name: str) -> float:
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
        raise _refused(f"its claim {name} is not a time in seconds")
    return float(value)


def expired(expires_s: float, now_s: float) -> ClusterError:
    """The error for credentials that have ended."""
    return ClusterError(
        f"the token expired {now_s - expires_s:.0f} s ago, by this broker's clock: the client "
        "needs a new one (a mounted token is renewed by itself; is the clock right?)",
        ErrorCode.CREDENTIALS_EXPIRED,
    )


def _holder(claims: dict[str, Any], issuer: Issuer) -> tuple[str, str]:
    """Principal and pod."""
    if issuer.kind == "kubernetes":
        return _service_account(claims)
    user = _name(claims.get(issuer.username_claim), issuer.username_claim)
    return f"oidc:{issuer.issuer}/{user}", ""


def _service_account(claims: dict[str, Any]) -> tuple[str, str]:
    """As the API server writes it: the private claim and `sub` say the same."""
    private = _object(claims, "kubernetes.io")
    account = _object(private, "serviceaccount")
    namespace, name = private.get("namespace"), account.get("name")
    for part in (namespace, name):
        if not isinstance(part, str) or not _KUBERNETES_NAME.fullmatch(part):
            raise _refused("it names no ServiceAccount in its claim kubernetes.io")
    if claims.get("sub") != f"system:serviceaccount:{namespace}:{name}":
        raise _refused("its claims sub and kubernetes.io name different ServiceAccounts")
    if "pod" not in private:
        return f"serviceaccount:{namespace}/{name}", ""
    pod = _object(private, "pod").get("name")
    if not isinstance(pod, str) or not _KUBERNETES_NAME.fullmatch(pod):
        raise _refused("it is bound to a pod, and does not name it")
    return f"serviceaccount:{namespace}/{name}", pod


def _object(parent: dict[str, Any], name: str) -> dict[str, Any]:
    value = parent.get(name)
    if not isinstance(value, dict):
        raise _refused(f"it has no claim {name}, as a token of a ServiceAccount has")
    return value


def _groups(claims: dict[str, Any], issuer: Issuer) -> tuple[str, ...]:
    if issuer.kind == "kubernetes" or not issuer.groups_claim:
        return ()
    given = claims.get(issuer.groups_claim, [])
    names = given if isinstance(given, list) else [given]
    if len(names) > GROUPS_MAX:
        raise _refused(f"it names {len(names)} groups; at most {GROUPS_MAX} are read")
    prefix = f"oidc-group:{issuer.issuer}/"
    return tuple(prefix + _name(name, issuer.groups_claim) for name in names)


def _name(value: object, claim: str) -> str:
    fits = isinstance(value, str) and 0 < len(value) <= NAME_LENGTH_MAX and value.isprintable()
    if not fits:
        raise _refused(
            f"its claim {claim} must have 1 to {NAME_LENGTH_MAX} characters that can be printed"
        )
    return str(value)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_LENGTH_MAX else f"{text[:_SHOWN_LENGTH_MAX]}…"


def _refused(what: str) -> ClusterError:
    return ClusterError(f"the token is refused: {what}", ErrorCode.UNAUTHENTICATED)
