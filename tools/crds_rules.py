"""The rules of the CRDs that need more than one value: Common Expression Language (CEL).

    rows of a kind ──immutable rows──┐
    settings ──known keys, ranges────┼──▶ {path of a schema: rules}, put there by `tools.crds`
    what spans fields, by hand here──┘

A rule is evaluated by the API server, which refuses a CRD whose rules could cost too much: every
text, list and mapping has a limit. Messages are those of `penstock local up`.
"""

import json
from collections.abc import Iterator
from typing import Any

from penstock.core.authorization.text import PREFIXES
from penstock.core.limits import INT64_MAX
from penstock.core.manifest.quotas import BYTES_LIMITS
from penstock.core.manifest.rows import Field
from penstock.core.manifest.schema import (
    CLUSTER_NAME,
    CLUSTER_NAME_DOC,
    CLUSTER_NAME_MAX_CHARS,
)
from penstock.core.manifest.schema_groups import RESET_VALUES
from penstock.core.quotas import Limit
from penstock.core.quotas.rules import LIMIT_MAX
from penstock.core.settings import CLUSTER_SETTINGS, TOPIC_SETTINGS, Setting
from penstock.core.topic import SHARE_PATTERN, SHARE_RANGE, TOPIC_NAME_MAX_CHARS

Rule = dict[str, Any]
Rules = dict[tuple[str, ...], list[Rule]]
"""By path below the object: `()` is the object, `("spec", "config")` its settings."""

ALIASES = {"Topic": "topicName", "ConsumerGroup": "groupId"}
"""Fields that stand for metadata.name when absent: setting them to the same is no change."""


def text(value: str) -> str:
    """A CEL literal."""
    return json.dumps(value)


def rule(expression: str, message: str, *seen: str) -> Rule:
    """A rule; with `seen`, a format and CEL expressions, its message shows the values.

    `format`, because the API server thinks that `+` of a number's text has no limit.
    """
    made = {"rule": expression, "message": message}
    if seen:
        template, *values = seen
        made["messageExpression"] = f"{text(template)}.format([{', '.join(values)}])"
    return made


def at(field_path: str, made: Rule) -> Rule:
    """The same rule, reported at a field below: the object itself has no name to report."""
    return {**made, "fieldPath": field_path}


def at_creation(made: Rule) -> Rule:
    """The same rule, for new objects alone: one that is there can still lose its finalizers."""
    return {**made, "rule": f"oldSelf.hasValue() || {made['rule']}", "optionalOldSelf": True}


def rules_of(kind: str, spec: tuple[Field, ...]) -> Rules:
    """All rules of one kind, by the path they are put at."""
    rules: Rules = {}
    for path, made in (*_immutable(spec, ("spec",), kind), *_BY_KIND[kind]()):
        rules.setdefault(path, []).append(made)
    return rules


def _immutable(
    rows: tuple[Field, ...], path: tuple[str, ...], kind: str
) -> Iterator[tuple[tuple[str, ...], Rule]]:
    for row in rows:
        yield from _immutable(row.fields, (*path, row.name), kind)
        if not row.immutable:
            continue
        name = row.name
        where = ".".join((*path, name))
        message = f"{where} cannot be changed once it is applied; {row.immutable_doc}"
        if row.required:
            seen = f"{where} is %s and was %s; {message}"
            yield (*path, name), rule("self == oldSelf", message, seen, "self", "oldSelf")
        elif ALIASES.get(kind) == name:
            new, old = (
                f"(has({side}.spec.{name}) ? {side}.spec.{name} : {side}.metadata.name)"
                for side in ("self", "oldSelf")
            )
            yield (), at(f".spec.{name}", rule(f"{new} == {old}", message))
        else:
            same = f"has(self.{name}) == has(oldSelf.{name})"
            yield (
                path,
                rule(f"{same} && (!has(self.{name}) || self.{name} == oldSelf.{name})", message),
            )


def _config(settings: tuple[Setting, ...], what: str) -> Iterator[tuple[tuple[str, ...], Rule]]:
    known = sorted(setting.key for setting in settings)
    names = ", ".join(known)
    path = ("spec", "config")
    listed = json.dumps(known)
    yield (
        path,
        rule(
            f"self.all(key, key in {listed})",
            f"spec.config contains an unknown {what} config; known are {names}",
            f"unknown {what} config %s; known are {names}",
            f"self.filter(key, !(key in {listed}))",
        ),
    )
    for setting in settings:
        yield path, _value(setting)


def _value(setting: Setting) -> Rule:
    key = text(setting.key)
    if setting.choices:
        expression = f"string(self[{key}]) in {json.dumps(setting.choices)}"
        wanted = " or ".join(setting.choices)
    elif setting.share:
        expression = f"string(self[{key}]).matches({text(f'^({SHARE_PATTERN})$')})"
        wanted = SHARE_RANGE
    else:
        # "-0" is a number to the reader of topic settings and to no other.
        sign = "-?" if setting in TOPIC_SETTINGS else ""
        expression = (
            f"[string(self[{key}])].all(v, v.matches('^{sign}[0-9]{{1,18}}$') ? "
            f"int(v) >= {setting.minimum}"
        )
        if setting.maximum == INT64_MAX:
            wanted = f"a whole number of at least {setting.minimum}"
            expression += f" : v.matches('^[0-9]{{19}}$') && v <= '{INT64_MAX}')"
        else:
            wanted = f"a whole number from {setting.minimum} to {setting.maximum}"
            expression += f" && int(v) <= {setting.maximum} : false)"
    return rule(
        f"!({key} in self) || {expression}",
        f"config {setting.key} must be {wanted}",
        f"config {setting.key} is '%s'; it must be {wanted}",
        f"string(self[{key}])",
    )


def _number(key: str, otherwise: str) -> str:
    """A setting as a number; `otherwise` if it is absent, or wrong, which its own rule says."""
    value = f"self.config[{text(key)}]"
    is_number = f"string({value}).matches('^[0-9]{{1,18}}$')"
    return f"({text(key)} in self.config && {is_number} ? int({value}) : {otherwise})"


def _cluster() -> Iterator[tuple[tuple[str, ...], Rule]]:
    name = "self.metadata.name"
    yield (
        (),
        at(
            ".metadata",
            rule(
                f"size({name}) <= {CLUSTER_NAME_MAX_CHARS}",
                f"metadata.name of a Cluster has at most {CLUSTER_NAME_MAX_CHARS} characters",
                f"metadata.name has %d characters; the limit is {CLUSTER_NAME_MAX_CHARS}, so that "
                "the names of pods and Services fit",
                f"size({name})",
            ),
        ),
    )
    yield (
        (),
        at(
            ".metadata",
            at_creation(
                rule(
                    f"{name}.matches('^{CLUSTER_NAME}$')",
                    f"metadata.name of a Cluster must be {CLUSTER_NAME_DOC}",
                    f"metadata.name is '%s'; it must be {CLUSTER_NAME_DOC}",
                    name,
                )
            ),
        ),
    )
    yield from _config(CLUSTER_SETTINGS, "cluster")
    yield from _cluster_settings()
    yield from _access()
    yield from _quotas()
    yield _volumes()
    yield from _security()
    yield from _client_certificates()


def _security() -> Iterator[tuple[tuple[str, ...], Rule]]:
    mode = "(has({0}.security) ? {0}.security.mode : 'Disabled')"
    new, old = mode.format("self.spec"), mode.format("oldSelf.spec")
    # Who asks for no mode gets one from the operator, before anything runs.
    undecided = (
        "!has(oldSelf.spec.security) && "
        "(!has(oldSelf.status) || !has(oldSelf.status.clusterId) || oldSelf.status.clusterId == '')"
    )
    yield (
        (),
        at(
            ".spec.security",
            rule(
                f"{new} == {old} || 'Migrate' in [{new}, {old}] || ({undecided})",
                "spec.security.mode changes between Disabled and Strict by Migrate, in which "
                "clients move; set Migrate first",
                "spec.security.mode is %s and was %s; between them it is Migrate, in which clients "
                "move: set that first",
                new,
                old,
            ),
        ),
    )
    mode = "(has(self.security) ? self.security.mode : 'Disabled')"
    yield (
        ("spec",),
        at(
            ".external",
            rule(
                f"{mode} == 'Disabled' || !has(self.external) || (has(self.external.host) && "
                "self.external.host != '')",
                "spec.external.host is missing; with spec.security.mode Strict or Migrate, "
                "certificates must name the address that clients use",
                "spec.external.host is missing; with spec.security.mode %s, certificates must name "
                "the address that clients use",
                mode,
            ),
        ),
    )


def _client_certificates() -> Iterator[tuple[tuple[str, ...], Rule]]:
    given = "has(self.security) && has(self.security.clientCertificates)"
    port = "self.security.clientCertificates.nodePort"
    yield (
        ("spec",),
        at(
            ".security.clientCertificates",
            rule(
                f"!({given}) || self.security.mode in ['Migrate', 'Strict']",
                "spec.security.clientCertificates needs spec.security.mode Strict: without TLS "
                "nobody shows a certificate",
            ),
        ),
    )
    yield (
        ("spec",),
        at(
            ".security.clientCertificates",
            rule(
                f"!({given}) || !has({port}) || has(self.external)",
                "spec.security.clientCertificates.nodePort needs spec.external, whose host clients "
                "use",
            ),
        ),
    )
    distance = f"{port} - self.external.nodePort"
    yield (
        ("spec",),
        at(
            ".security.clientCertificates",
            rule(
                f"!({given}) || !has({port}) || !has(self.external) || "
                f"{distance} > self.brokers || {distance} < -self.brokers",
                "spec.security.clientCertificates.nodePort and spec.external.nodePort each take "
                "one port more than there are brokers; set them further apart",
            ),
        ),
    )


def _cluster_settings() -> Iterator[tuple[tuple[str, ...], Rule]]:
    """Settings against each other and against the brokers."""
    factor = _number("default.replication.factor", "(self.brokers < 3 ? self.brokers : 3)")
    set_factor = _number("default.replication.factor", "1")
    yield (
        ("spec",),
        rule(
            f"{set_factor} <= self.brokers",
            "default.replication.factor must not be more than spec.brokers; lower "
            "default.replication.factor or raise spec.brokers",
            "spec.config.default.replication.factor is %d, but spec.brokers is %d; lower "
            "default.replication.factor or raise spec.brokers",
            set_factor,
            "self.brokers",
        ),
    )
    yield (
        ("spec",),
        rule(
            f"{_number('min.insync.replicas', '1')} <= {factor}",
            "min.insync.replicas must not be more than default.replication.factor",
            "spec.config.min.insync.replicas is %d, but default.replication.factor is %d, so "
            "that no acks=all write could succeed; lower min.insync.replicas or raise "
            "default.replication.factor",
            _number("min.insync.replicas", "1"),
            factor,
        ),
    )
    defaults = {setting.key: setting.default for setting in CLUSTER_SETTINGS}
    timeout, heartbeat = (
        _number(key, defaults[key])
        for key in ("broker.session.timeout.ms", "broker.heartbeat.interval.ms")
    )
    yield (
        ("spec",),
        rule(
            f"{timeout} >= 2 * {heartbeat}",
            "broker.session.timeout.ms must be at least twice broker.heartbeat.interval.ms",
            "broker.session.timeout.ms is %d; it must be at least twice "
            "broker.heartbeat.interval.ms, which is %d",
            timeout,
            heartbeat,
        ),
    )


def _volumes() -> tuple[tuple[str, ...], Rule]:
    new, old = "string(self)", "string(oldSelf)"
    return (
        ("spec", "storage", "size"),
        rule(
            f"!isQuantity({new}) || !isQuantity({old}) || "
            f"quantity({new}).compareTo(quantity({old})) >= 0",
            "spec.storage.size can grow but never shrink, because volumes cannot shrink; "
            "restore the old size",
            "spec.storage.size is %s and was %s; volumes can grow but never shrink: restore the "
            "old size",
            new,
            old,
        ),
    )


def _access() -> Iterator[tuple[tuple[str, ...], Rule]]:
    """Of a rule of a Cluster: what it is about."""
    names = ("role", *PREFIXES)
    one_of = " + ".join(f"(has(self.{name}) ? 1 : 0)" for name in names)
    path = ("spec", "access", "*")
    yield path, rule(f"{one_of} == 1", f"it must have one of {', '.join(names)}")
    yield (
        path,
        rule(
            "has(self.role) != (has(self.operations) && self.operations.size() > 0)",
            "it must have operations with a prefix, and none with a role",
        ),
    )


def _quotas() -> Iterator[tuple[tuple[str, ...], Rule]]:
    """Of a quota: that it has a limit, which is not too large."""
    path = ("spec", "quotas", "*")
    given = " || ".join(f"has(self.{limit.value})" for limit in Limit)
    names = ", ".join(limit.value for limit in Limit)
    yield path, rule(given, f"it has no limit; give one of {names}")
    for limit in BYTES_LIMITS:
        size = "string(self)"
        yield (
            (*path, limit.value),
            rule(
                f"!isQuantity({size}) || quantity({size}).compareTo(quantity('{LIMIT_MAX}')) <= 0",
                f"{limit.value} must be 1 to {LIMIT_MAX}",
            ),
        )


def _topic() -> Iterator[tuple[tuple[str, ...], Rule]]:
    name = "(has(self.spec.topicName) ? self.spec.topicName : self.metadata.name)"
    legal = (
        f"a topic name must have 1 to {TOPIC_NAME_MAX_CHARS} characters from a-z, A-Z, 0-9, '.', "
        "'_' and '-', and must not be '.' or '..'"
    )
    yield (
        (),
        at(
            ".spec.topicName",
            rule(
                f"size({name}) <= {TOPIC_NAME_MAX_CHARS} && !({name} in ['.', '..']) && "
                f"{name}.matches('^[a-zA-Z0-9._-]+$')",
                f"{legal}; without spec.topicName it is metadata.name",
                f"topic name '%s' cannot be used; {legal}",
                name,
            ),
        ),
    )
    yield from _config(TOPIC_SETTINGS, "topic")
    min_isr = _number("min.insync.replicas", "1")
    yield (
        ("spec",),
        rule(
            f"!has(self.replicas) || {min_isr} <= self.replicas",
            "min.insync.replicas must not be more than spec.replicas",
            "spec.config.min.insync.replicas is %d, but the topic has %d replicas, so that no "
            "acks=all write could succeed; lower it or raise spec.replicas",
            min_isr,
            "self.replicas",
        ),
    )
    yield (
        ("spec", "partitions"),
        rule(
            "self >= oldSelf",
            "spec.partitions can never shrink, because records would be lost; restore the old "
            "number, or write to a new topic",
            "spec.partitions is %d, but the topic has %d; partitions can never shrink, because "
            "records would be lost: restore the old number, or write to a new topic",
            "self",
            "oldSelf",
        ),
    )


def _consumer_group() -> Iterator[tuple[tuple[str, ...], Rule]]:
    path = ("spec", "offsetReset")
    for to, (pattern, wanted) in RESET_VALUES.items():
        yield (
            path,
            rule(
                f"self.to != {text(to)} || (has(self.value) && "
                f"string(self.value).matches({text(f'^({pattern})$')}))",
                f"spec.offsetReset.value must be {wanted}, because spec.offsetReset.to is {to}",
            ),
        )
    yield (
        path,
        rule(
            f"self.to in {json.dumps(list(RESET_VALUES))} || !has(self.value)",
            "spec.offsetReset.value has no meaning for earliest and latest; remove it",
            "spec.offsetReset.value has no meaning when spec.offsetReset.to is %s; remove it",
            "self.to",
        ),
    )
    yield (
        ("spec", "scaleTarget"),
        rule(
            "self.minReplicas <= self.maxReplicas",
            "spec.scaleTarget.minReplicas must not be more than spec.scaleTarget.maxReplicas",
            "spec.scaleTarget.minReplicas is %d; it must not be more than "
            "spec.scaleTarget.maxReplicas, which is %d",
            "self.minReplicas",
            "self.maxReplicas",
        ),
    )


_BY_KIND: dict[str, Any] = {
    "Cluster": _cluster,
    "Topic": _topic,
    "ConsumerGroup": _consumer_group,
}
