"""Quotas per principal: the rules, and the buckets that hold callers to them."""

from penstock.core.quotas.buckets import Buckets
from penstock.core.quotas.rules import (
    Limit,
    QuotaRule,
    check_quotas,
    quotas_from_json,
    quotas_to_json,
)

__all__ = [
    "Buckets",
    "Limit",
    "QuotaRule",
    "check_quotas",
    "quotas_from_json",
    "quotas_to_json",
]
