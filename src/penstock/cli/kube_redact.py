"""Takes secrets out of what leaves the user's hands. Pure.

By name: the value of every key, environment variable, argument or query parameter that sounds
like a secret. By look: private keys, tokens, credentials in addresses, wherever they stand. It
rather takes too much: a support bundle without a harmless value is still one.
"""

import re
from typing import Any, Final

GONE: Final = "(removed)"

_NAME: Final = re.compile(
    r"passw(or)?d|passphrase|secret|token|api[-_.]?key|private[-_.]?key|access[-_.]?key|"
    r"credential|authorization|\bauth\b|bearer|client[-_.]?key|keystore|htpasswd|dockerconfig|"
    r"connection[-_.]?string|cookie",
    re.IGNORECASE,
)
_HARMLESS: Final = re.compile(
    r"^(automountServiceAccountToken|secretName|tokenReview|serviceAccountToken|secretKeyRef|"
    r"imagePullSecrets|expirationSeconds|secrets)$"
)
"""Names of the Kubernetes API whose values say where a secret is, not what."""

_LOOKS: Final = (
    re.compile(
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
    ),
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),  # a JSON web token
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),
    re.compile(r"(?<=[Bb]earer )[\w.~+/=-]{8,}"),
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
)
_QUOTED: Final = r"\"[^\"\n]*\"|'[^'\n]*'|[^\s,;&\"'}\])]+"
_PAIR: Final = re.compile(
    rf"(?P<name>[\w.-]*(?:{_NAME.pattern})[\w.-]*)(?P<sign>\\?[\"']?\s*[=:]\s*)(?P<value>{_QUOTED})",
    re.IGNORECASE,
)


def redact_text(text: str) -> str:
    """A log or a message, line by line or whole."""
    for look in _LOOKS:
        text = look.sub(GONE, text)
    return _PAIR.sub(_without_value, text)


def _without_value(match: re.Match[str]) -> str:
    value = match["value"]
    quote = value[0] if value[0] in "\"'" else ""
    return f"{match['name']}{match['sign']}{quote}{GONE}{quote}"


def redact(thing: Any, name: str = "") -> Any:
    """A JSON value without secrets; lists and objects are copied."""
    if isinstance(thing, dict):
        if _is_named_value(thing):
            return {**{key: redact(one, key) for key, one in thing.items()}, "value": GONE}
        return {key: redact(one, key) for key, one in thing.items() if key != "managedFields"}
    if isinstance(thing, list):
        return [redact(one, name) for one in _without_argument_values(thing)]
    if not isinstance(thing, str):
        return thing if not _is_secret(name) or isinstance(thing, bool) else GONE
    return GONE if thing and _is_secret(name) else redact_text(thing)


def _is_secret(name: str) -> bool:
    return bool(_NAME.search(name)) and not _HARMLESS.match(name)


def _is_named_value(thing: dict[str, Any]) -> bool:
    """`{"name": "DB_PASSWORD", "value": …}`, as containers have environment variables."""
    return "value" in thing and isinstance(thing.get("name"), str) and _is_secret(thing["name"])


def _without_argument_values(things: list[Any]) -> list[Any]:
    """`["--password", "x"]`: the value stands in the next entry."""
    found: list[Any] = []
    for thing in things:
        before = found[-1] if found else None
        hidden = (
            isinstance(thing, str)
            and isinstance(before, str)
            and before.startswith("-")
            and "=" not in before
            and _is_secret(before)
        )
        found.append(GONE if hidden else thing)
    return found
