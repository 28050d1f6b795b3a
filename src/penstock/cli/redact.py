"""Removes secrets from data that the user passes on. Pure.

By name: the value of every key, environment variable, argument or query parameter that sounds like
a secret. By look: private keys, tokens, credentials in addresses, wherever they are. It rather
removes too much: a support bundle is still useful without a harmless value.
"""

import json
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
"""Names in the Kubernetes API whose values tell where a secret is, not what it is."""

_LOOKS: Final = (
    re.compile(
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
    ),
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),  # a JSON web token
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),
    re.compile(r"(?<=[Bb]earer )[\w.~+/=-]{8,}"),
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
)
_WORD: Final = r"[\w.-]{0,64}"
"""Bounded, so that a megabyte without a space does not take quadratic time."""
_VALUE: Final = (
    r"(?:(?:basic|bearer|digest|negotiate|token)\s+)?"
    r"(?P<value>\\\"[^\"\n]*\\\"|\"[^\"\n]*\"|'[^'\n]*'|[^\s,;&\"'}\])]+)"
)
_PAIR: Final = re.compile(
    rf"(?P<before>(?:{_NAME.pattern}){_WORD}\\?[\"']?\s*[=:]\s*"
    rf"|(?<!\S)--?{_WORD}(?:{_NAME.pattern}){_WORD}\s+(?!-)){_VALUE}",
    re.IGNORECASE,
)
"""`name=value`, `"name": "value"`, `--name value`, with quotes that may be escaped."""


def redact_text(text: str) -> str:
    """A log or a message; lines that are JSON objects are read as such."""
    for look in _LOOKS:
        text = look.sub(GONE, text)
    return "\n".join(_redact_line(line) for line in text.split("\n"))


def _redact_line(line: str) -> str:
    if line.startswith(("{", "[")):
        try:
            found = json.loads(line)
            without = redact(found)
        except (ValueError, RecursionError):
            pass  # not JSON, or nested too deep: treated like any other line
        else:
            return line if without == found else json.dumps(without, ensure_ascii=False)
    return _PAIR.sub(_without_value, line)


def _without_value(match: re.Match[str]) -> str:
    value = match["value"]
    quote = next((mark for mark in ('\\"', '"', "'") if value.startswith(mark)), "")
    return f"{match['before']}{quote}{GONE}{quote}"


def redact(thing: Any, name: str = "", *, hidden: bool = False) -> Any:
    """A JSON value without secrets; lists and objects are copied.

    `hidden`: below something that sounds like a secret, where every value goes.
    """
    hidden = hidden or _is_secret(name)
    if isinstance(thing, dict):
        kept = {key: one for key, one in thing.items() if key != "managedFields"}
        if _is_named_value(thing):
            kept["value"] = GONE
        return {key: redact(one, key, hidden=hidden) for key, one in kept.items()}
    if isinstance(thing, list):
        return [redact(one, hidden=hidden) for one in _without_argument_values(thing)]
    if thing is None or isinstance(thing, bool) or thing == "":
        return thing
    if hidden:
        return GONE
    return redact_text(thing) if isinstance(thing, str) else thing


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
