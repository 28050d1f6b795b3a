"""While a controller does not know an OIDC issuer's keys, brokers go on with the last ones. Pure.

A controller that has just started has no keys of an issuer that is down. It says so with an empty
list, and never means by it that the issuer has none: an answer without a usable key is refused
(`controller.oidc`). An issuer whose tokens are to count no more is taken out of the list.
"""

import json
from typing import Any


def with_last_keys(document: bytes, before: bytes) -> bytes:
    """A controller's document of issuers; what it does not know is as in the document `before`.

    Keys stay with their issuer, kind and audience. A document that cannot be read is returned as it
    is.
    """
    known = {_identity(entry): entry["jwks"] for entry in _entries(before) if _has_keys(entry)}
    entries = _entries(document)
    kept = False
    for entry in entries:
        if entry.get("kind") == "oidc" and not _has_keys(entry) and _identity(entry) in known:
            entry["jwks"] = known[_identity(entry)]
            kept = True
    return json.dumps({"issuers": entries}, sort_keys=True).encode() if kept else document


def _entries(document: bytes) -> list[dict[str, Any]]:
    """None, unless all of it is as it must be: then it is not for this module to say what is
    wrong."""
    try:
        whole = json.loads(document)
    except (ValueError, RecursionError):
        return []
    entries = whole.get("issuers") if isinstance(whole, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return []
    return entries


def _has_keys(entry: dict[str, Any]) -> bool:
    jwks = entry.get("jwks")
    return isinstance(jwks, dict) and bool(jwks.get("keys"))


def _identity(entry: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(entry.get(name)) for name in ("kind", "issuer", "audience"))
