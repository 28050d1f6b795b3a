"""What a principal may take: rules, and what is wrong with them.

{"principals": ["serviceaccount:etl/spark"], "produceBytesPerSecond": 10485760}
{"principals": ["*"], "mutationsPerMinute": 60, "streams": 200}

The rule that names a principal is theirs, alone; the rule of "*" is for each of the others. Nobody
is named by two rules, so nothing is merged.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from penstock.core.authorization.checks import (
    EVERYBODY,
    ONE_PRINCIPAL_PATTERN,
    PRINCIPALS_MAX,
    check_principal,
)
from penstock.core.json_records import encode
from penstock.errors import ErrorCode, MisuseError

RULES_MAX: Final = 1_000
BYTES_MAX: Final = 128 * 1024
"""Of all rules as JSON: they share a document of 1 MiB with the rules of access."""
LIMIT_MAX: Final = 1 << 50
QUOTA_PRINCIPAL_PATTERN: Final = rf"\*|{ONE_PRINCIPAL_PATTERN}"
"""Whom a quota may name, as CRDs take it."""
QUOTA_PRINCIPAL_FORMS: Final = (
    '"serviceaccount:<namespace>/<name>", "cert:<common name>", "oidc:<issuer>/<subject>", or "*" '
    "for each of the others who are known"
)


class Limit(Enum):
    """What is limited; the value is its name in manifests and documents.

    All are per broker, but MUTATIONS, which the controller counts for the cluster. STREAMS are
    those open at one time; the others are rates.
    """

    PRODUCE = "produceBytesPerSecond"
    FETCH = "fetchBytesPerSecond"
    REQUEST = "requestMillisPerSecond"
    MUTATIONS = "mutationsPerMinute"
    STREAMS = "streams"


@dataclass(frozen=True, slots=True)
class QuotaRule:
    """Limits of each of these principals; what `limits` does not name has none."""

    principals: tuple[str, ...]
    limits: Mapping[Limit, int]


def check_quotas(rules: Sequence[QuotaRule]) -> None:
    """Raises MisuseError(INVALID_REQUEST)."""
    if len(rules) > RULES_MAX:
        raise _wrong(f"there are {len(rules)} quotas, the limit is {RULES_MAX}")
    named: dict[str, int] = {}
    for index, rule in enumerate(rules):
        where = f"quota {index}"
        if not 1 <= len(rule.principals) <= PRINCIPALS_MAX:
            raise _wrong(
                f"{where} has {len(rule.principals)} principals; it must have 1 to {PRINCIPALS_MAX}"
            )
        for principal in rule.principals:
            _check_exact(where, principal)
            if principal in named:
                raise _wrong(
                    f"{where} names {principal!r}, and so does quota {named[principal]}: give each "
                    "principal one quota"
                )
            named[principal] = index
        if not rule.limits:
            known = ", ".join(limit.value for limit in Limit)
            raise _wrong(f"{where} has no limit; give one of {known}")
        for limit, value in rule.limits.items():
            if not 1 <= value <= LIMIT_MAX:
                raise _wrong(f"{where}: {limit.value} is {value}; it must be 1 to {LIMIT_MAX}")
    size_bytes = len(encode(quotas_to_json(rules)))
    if size_bytes > BYTES_MAX:
        raise _wrong(f"the quotas have {size_bytes} bytes as JSON, the limit is {BYTES_MAX}")


def quotas_to_json(rules: Iterable[QuotaRule]) -> list[dict[str, Any]]:
    """`quotas_from_json` reads it back."""
    return [
        {
            "principals": list(rule.principals),
            **{limit.value: rule.limits[limit] for limit in Limit if limit in rule.limits},
        }
        for rule in rules
    ]


def quotas_from_json(found: Iterable[Mapping[str, Any]]) -> tuple[QuotaRule, ...]:
    """Raises KeyError, TypeError, ValueError for what `quotas_to_json` does not write."""
    return tuple(
        QuotaRule(
            tuple(str(principal) for principal in entry["principals"]),
            {limit: int(entry[limit.value]) for limit in Limit if limit.value in entry},
        )
        for entry in found
    )


def _check_exact(where: str, principal: str) -> None:
    check_principal(principal, QUOTA_PRINCIPAL_FORMS)
    wild = principal.startswith("serviceaccount:") and principal.endswith("/*")
    if principal != EVERYBODY and (wild or principal.startswith("oidc-group:")):
        raise _wrong(
            f"{where} names {principal!r}: a quota is of one principal, or of each by "
            f"{EVERYBODY!r}; name them one by one"
        )


def _wrong(what: str) -> MisuseError:
    return MisuseError(what, ErrorCode.INVALID_REQUEST)
