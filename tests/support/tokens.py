"""Issuers of tokens for tests: keys of their own, tokens with any claims, right or wrong."""

import base64
import json
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

ISSUER = "https://kubernetes.example"
AUDIENCE = "penstock.etl.flights"


def now_s() -> float:
    return time.time_ns() / 1e9


class Issuer:
    """Signs with one key. `algorithm`: ES256 or RS256."""

    def __init__(
        self,
        issuer: str = ISSUER,
        audience: str = AUDIENCE,
        *,
        kind: str = "kubernetes",
        algorithm: str = "ES256",
        key_id: str = "one",
        **settings: str,
    ) -> None:
        self.issuer, self.audience, self.kind = issuer, audience, kind
        self.algorithm, self.key_id, self.settings = algorithm, key_id, settings
        self.key: Any = (
            ec.generate_private_key(ec.SECP256R1())
            if algorithm == "ES256"
            else rsa.generate_private_key(65537, 2048)
        )

    @property
    def jwk(self) -> dict[str, Any]:
        kind: Any = ECAlgorithm if self.algorithm == "ES256" else RSAAlgorithm
        public = json.loads(kind.to_jwk(self.key.public_key()))
        return {**public, "kid": self.key_id, "use": "sig", "alg": self.algorithm}

    @property
    def public_pem(self) -> bytes:
        encoding, form = serialization.Encoding, serialization.PublicFormat
        pem: bytes = self.key.public_key().public_bytes(encoding.PEM, form.SubjectPublicKeyInfo)
        return pem

    @property
    def entry(self) -> dict[str, Any]:
        """Its part of the issuers' file."""
        return {
            "issuer": self.issuer,
            "audience": self.audience,
            "kind": self.kind,
            "jwks": {"keys": [self.jwk]},
            **self.settings,
        }

    def claims(self, user: str = "etl/spark", **changes: Any) -> dict[str, Any]:
        """Of a ServiceAccount, as the API server writes them; a change to None removes a claim."""
        namespace, _, name = user.partition("/")
        claims = {
            "iss": self.issuer,
            "aud": [self.audience],
            "sub": f"system:serviceaccount:{user.replace('/', ':')}",
            "iat": int(now_s()),
            "nbf": int(now_s()),
            "exp": int(now_s()) + 3600,
            "kubernetes.io": {
                "namespace": namespace,
                "serviceaccount": {"name": name, "uid": "5f0c"},
            },
        }
        return {key: value for key, value in {**claims, **changes}.items() if value is not None}

    def token(
        self, user: str = "etl/spark", *, headers: dict[str, Any] | None = None, **changes: Any
    ) -> str:
        return self.sign(self.claims(user, **changes), headers)

    def sign(self, claims: dict[str, Any], headers: dict[str, Any] | None = None) -> str:
        given = {"kid": self.key_id, **(headers or {})}
        return jwt.encode(claims, self.key, algorithm=self.algorithm, headers=given)


def write_issuers(path: Path, *issuers: Issuer) -> Path:
    path.write_text(json.dumps({"issuers": [each.entry for each in issuers]}))
    return path


def without_signature(token: str, **header: Any) -> str:
    """The same claims under another header, with no signature that counts."""
    head = {"typ": "JWT", **header}
    encoded = base64.urlsafe_b64encode(json.dumps(head).encode()).rstrip(b"=").decode()
    return f"{encoded}.{token.split('.')[1]}.AAAA"


class CountingExecutor(ThreadPoolExecutor):
    """One thread; counts what it was given."""

    def __init__(self) -> None:
        super().__init__(1)
        self.given = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        self.given += 1
        return super().submit(fn, *args, **kwargs)
