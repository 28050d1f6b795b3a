"""`spec.quotas`: quotas in the manifest of a Cluster, and the step that makes a cluster's match.

    spec.quotas ───┐
                   ├─ plan_quotas (pure) ─▶ AlterQuotas: replaces all quotas
    stored quotas ─┘                        local mode and the operator carry it out

Absent: quotas are not managed, whoever set them. Empty: there are none. Otherwise they are exactly
these, and quotas set in another way are reset as settings are.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.core.authorization.checks import PRINCIPAL_MAX_CHARS, PRINCIPALS_MAX
from penstock.core.manifest.fields import Values
from penstock.core.manifest.problems import Report
from penstock.core.manifest.rows import Field, Kind
from penstock.core.quantities import QUANTITY_CHARS_MAX, quantity_bytes
from penstock.core.quotas import Limit, QuotaRule, check_quotas
from penstock.core.quotas.rules import (
    LIMIT_MAX,
    QUOTA_PRINCIPAL_FORMS,
    QUOTA_PRINCIPAL_PATTERN,
    RULES_MAX,
)
from penstock.errors import MisuseError

FIELD: Final = "quotas"
BYTES_LIMITS: Final = (Limit.PRODUCE, Limit.FETCH)
"""Written as quantities, the others as whole numbers."""
_DOCS: Final = {
    Limit.PRODUCE: "Bytes per second that each of them may write, on each broker.",
    Limit.FETCH: "Bytes per second that each of them may read, on each broker.",
    Limit.REQUEST: "Milliseconds of unary calls per second, on each broker.",
    Limit.MUTATIONS: "Changes per minute, in the whole Cluster; a topic counts as many as it has "
    "partitions.",
    Limit.STREAMS: "Streams open at one time, on each broker.",
}


def _limit(limit: Limit) -> Field:
    if limit in BYTES_LIMITS:
        return Field(
            name=limit.value,
            kind=Kind.QUANTITY,
            doc=f"{_DOCS[limit]} At most 1Pi; absent = not limited.",
            max_length=QUANTITY_CHARS_MAX,
        )
    return Field(
        name=limit.value,
        kind=Kind.INTEGER,
        doc=f"{_DOCS[limit]} Absent = not limited.",
        minimum=1,
        maximum=LIMIT_MAX,
    )


CLUSTER_QUOTAS: Final = Field(
    name=FIELD,
    kind=Kind.OBJECTS,
    doc="What principals may take of the Cluster, if it is Strict. Absent = quotas set by "
    "`penstock quota` are kept; empty = there are none; otherwise there are exactly these. No "
    "principal is in two of them, and each has at least one limit.",
    max_items=RULES_MAX,
    fields=(
        Field(
            name="principals",
            kind=Kind.TEXTS,
            doc=f"Whose quota it is, each one's alone: {QUOTA_PRINCIPAL_FORMS}.",
            required=True,
            min_items=1,
            max_items=PRINCIPALS_MAX,
            max_length=PRINCIPAL_MAX_CHARS,
            pattern=QUOTA_PRINCIPAL_PATTERN,
            pattern_doc=QUOTA_PRINCIPAL_FORMS,
        ),
        *(_limit(limit) for limit in Limit),
    ),
)
"""The row of `quotas` of a Cluster."""


def quotas_from_values(values: Values) -> tuple[QuotaRule, ...] | None:
    """The quotas; None if they are absent or wrong, which has been reported."""
    entries = values.objects(FIELD)
    return None if entries is None else tuple(_rule(each) for each in entries)


def _rule(values: Values) -> QuotaRule:
    limits = {
        limit: quantity_bytes(values.text(limit.value))
        if limit in BYTES_LIMITS
        else values.integer(limit.value)
        for limit in Limit
        if values.given(limit.value)
    }
    return QuotaRule(values.texts("principals"), limits)


def check_cluster_quotas(rules: tuple[QuotaRule, ...] | None, report: Report) -> None:
    """What rows cannot say, such as a principal that two quotas name."""
    try:
        check_quotas(rules or ())
    except MisuseError as error:
        report.add(f"spec.{FIELD}", f"cannot be used: {error.message}")


@dataclass(frozen=True, slots=True)
class AlterQuotas:
    """Replaces all quotas: `before` is what there is, `rules` what there will be."""

    before: tuple[QuotaRule, ...]
    rules: tuple[QuotaRule, ...]

    def __str__(self) -> str:
        old, new = _by_principal(self.before), _by_principal(self.rules)
        parts = [f"{name} has {text}" for name, text in new.items() if old.get(name) != text]
        parts += [f"{name} has none any longer" for name in old if name not in new]
        return f"the cluster: quotas: {', '.join(parts) or 'the same in other words'}"


def plan_quotas(
    wanted: tuple[QuotaRule, ...] | None, stored: tuple[QuotaRule, ...]
) -> AlterQuotas | None:
    """The step, if quotas are managed and differ; `wanted` None: not managed."""
    return None if wanted is None or wanted == stored else AlterQuotas(stored, wanted)


def _by_principal(rules: Iterable[QuotaRule]) -> Mapping[str, str]:
    """`produceBytesPerSecond=10485760 streams=200` of each principal."""
    return {
        name: " ".join(
            f"{limit.value}={rule.limits[limit]}" for limit in Limit if limit in rule.limits
        )
        for rule in rules
        for name in rule.principals
    }
