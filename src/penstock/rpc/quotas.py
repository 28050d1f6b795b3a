"""Quotas on the wire: the protocol's messages to `core.quotas`, and back."""

from collections.abc import Iterable
from typing import Final

from penstock.core.quotas import Limit, QuotaRule
from penstock.proto.v1 import access_pb2 as pb

_FIELDS: Final = {
    Limit.PRODUCE: "produce_bytes_per_second",
    Limit.FETCH: "fetch_bytes_per_second",
    Limit.REQUEST: "request_millis_per_second",
    Limit.MUTATIONS: "mutations_per_minute",
    Limit.STREAMS: "streams",
}


def quotas_from_wire(messages: Iterable[pb.QuotaRule]) -> tuple[QuotaRule, ...]:
    """The rules, unchecked."""
    return tuple(
        QuotaRule(
            tuple(message.principals),
            {
                limit: getattr(message, name)
                for limit, name in _FIELDS.items()
                if message.HasField(name)  # type: ignore[arg-type]
            },
        )
        for message in messages
    )


def quotas_to_wire(rules: Iterable[QuotaRule]) -> list[pb.QuotaRule]:
    """The messages, in order."""
    found = []
    for rule in rules:
        message = pb.QuotaRule(principals=rule.principals)
        for limit, value in rule.limits.items():
            setattr(message, _FIELDS[limit], value)
        found.append(message)
    return found
