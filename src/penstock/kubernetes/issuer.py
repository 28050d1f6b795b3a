"""The API server as an issuer of tokens: its name and its public keys, as it publishes them.

Whoever has an account may read both: Kubernetes binds `system:service-account-issuer-discovery` to
all ServiceAccounts (OpenID Connect Discovery 1.0, RFC 7517).
"""

import json
from typing import Final

from penstock.kubernetes.api import Api
from penstock.kubernetes.errors import KubernetesError
from penstock.kubernetes.resources import Json

CONFIGURATION: Final = "/.well-known/openid-configuration"
KEYS: Final = "/openid/v1/jwks"


def published_issuer(api: Api) -> tuple[str, Json]:
    """The issuer in ServiceAccounts' tokens, and the JSON Web Key Set that signs them.

    Raises KubernetesError. The keys are asked for where this API server has them, and not where its
    configuration says, which may be an address that only outsiders reach.
    """
    issuer = _object(api, CONFIGURATION).get("issuer")
    keys = _object(api, KEYS)
    if not isinstance(issuer, str) or not issuer or not keys.get("keys"):
        raise KubernetesError(
            f"the Kubernetes API at {api.host} publishes no issuer or no keys of ServiceAccounts' "
            "tokens; its --service-account-issuer must be set",
            0,
        )
    return issuer, keys


def _object(api: Api, path: str) -> Json:
    """Empty for anything else. The keys have a media type of their own, and no other is served."""
    try:
        found = json.loads(api.text(path))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
