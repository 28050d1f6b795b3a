"""The fields of ConsumerGroup, as in `schema`.

A group exists because its members join it; the resource shows it, resets its offsets once per
request, and scales its members. The valid `value` of an offset reset depends on its `to`.
"""

from typing import Final

from penstock.core.authorization.model import Kind as ResourceKind
from penstock.core.limits import INT32_MAX
from penstock.core.manifest.access import own_access
from penstock.core.manifest.rows import Field, Kind
from penstock.core.manifest.schema import (
    CLUSTER_REFERENCE,
    DELETION_POLICY,
    LABEL_DOC,
    SUBDOMAIN,
)
from penstock.core.topic import TOPIC_NAME_MAX_CHARS

PODS_MAX: Final = 1_000
"""Of consumers."""

_TIME: Final = "([0-9]{1,9}H([0-9]{1,9}M)?([0-9]{1,9}S)?|[0-9]{1,9}M([0-9]{1,9}S)?|[0-9]{1,9}S)"
_DATETIME: Final = (
    "[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"(T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})?)?"
)
RESET_VALUES: Final = {
    "offset": ("[0-9]{1,18}", "an offset, 0 or more"),
    "shift": ("-?[0-9]{1,18}", "a number of records; negative = back"),
    "datetime": (
        _DATETIME,
        "a time such as 2030-01-31T12:00:00Z (UTC if no zone is given)",
    ),
    "duration": (f"P([0-9]{{1,9}}D(T{_TIME})?|T{_TIME})", "a duration such as PT1H30M or P1D"),
}
"""Pattern of `offsetReset.value` by `to`, and its description; other `to`s take no value."""

_OFFSET_RESET: Final = Field(
    name="offsetReset",
    kind=Kind.OBJECT,
    doc="Moves the group's committed offsets once per id, while the group has no members. "
    "Ignored in local mode.",
    optional=True,
    fields=(
        Field(
            name="id",
            kind=Kind.TEXT,
            doc="Any text; the reset of an id is applied once. For another reset, set a new id.",
            required=True,
            max_length=63,
            pattern="[a-zA-Z0-9]([a-zA-Z0-9._-]*[a-zA-Z0-9])?",
            pattern_doc="letters, digits, '.', '_' and '-', beginning and ending with a letter "
            "or digit",
        ),
        Field(
            name="to",
            kind=Kind.TEXT,
            doc="The target: earliest, latest, an offset, a datetime, a duration back from now, "
            "or a shift by a number of records.",
            required=True,
            choices=("earliest", "latest", "offset", "datetime", "duration", "shift"),
        ),
        Field(
            name="value",
            kind=Kind.SCALAR,
            doc="The value for `to`: a number for offset and shift (negative = back), ISO 8601 "
            "for datetime (2030-01-31T12:00:00Z) and duration (PT1H30M, P1D).",
            max_length=64,
        ),
        Field(
            name="topics",
            kind=Kind.TEXTS,
            doc="Only these topics; absent = all topics for which the group has offsets.",
            max_length=TOPIC_NAME_MAX_CHARS,
            pattern="[a-zA-Z0-9._-]+",
            pattern_doc="letters, digits, '.', '_' and '-'",
        ),
        Field(
            name="dryRun",
            kind=Kind.BOOLEAN,
            doc="true = the status shows what would change, but nothing changes.",
            default=False,
        ),
    ),
)

_SCALE_TARGET: Final = Field(
    name="scaleTarget",
    kind=Kind.OBJECT,
    doc="A Deployment of consumers to scale by lag; absent = none. Ignored in local mode.",
    optional=True,
    fields=(
        Field(
            name="kind",
            kind=Kind.TEXT,
            doc="What is scaled.",
            default="Deployment",
            choices=("Deployment",),
        ),
        Field(
            name="name",
            kind=Kind.TEXT,
            doc="The Deployment's name, in the same namespace.",
            required=True,
            pattern=SUBDOMAIN,
            pattern_doc=LABEL_DOC,
        ),
        Field(
            name="minReplicas",
            kind=Kind.INTEGER,
            doc="Minimum number of pods; 0 = no pods while there is nothing to read. Lag is known "
            "only from committed offsets: start a pod yourself for the first commit, and keep "
            "offsets.retention.minutes above the longest quiet time. Otherwise the offsets expire, "
            "and no pod is started again.",
            default=1,
            minimum=0,
            maximum=PODS_MAX,
        ),
        Field(
            name="maxReplicas",
            kind=Kind.INTEGER,
            doc="Maximum number of pods; more pods than partitions are useless.",
            required=True,
            minimum=1,
            maximum=PODS_MAX,
        ),
        Field(
            name="lagPerReplica",
            kind=Kind.INTEGER,
            doc="Records of lag per pod: more lag means more pods.",
            required=True,
            minimum=1,
            maximum=INT32_MAX,
        ),
        Field(
            name="stabilizationWindowSeconds",
            kind=Kind.INTEGER,
            doc="How long fewer pods must have been enough before the number is reduced, so "
            "that a fluctuating lag does not start and stop pods.",
            default=300,
            minimum=0,
            maximum=3600,
        ),
    ),
)

CONSUMER_GROUP_SPEC: Final = (
    CLUSTER_REFERENCE,
    Field(
        name="groupId",
        kind=Kind.TEXT,
        doc="The group id that its members use; absent = metadata.name.",
        immutable=True,
        immutable_doc="groups cannot be renamed: create another ConsumerGroup",
        max_length=249,
        pattern="[!-~]([ -~]*[!-~])?",
        pattern_doc="printable ASCII, neither beginning nor ending with a space",
    ),
    _OFFSET_RESET,
    _SCALE_TARGET,
    own_access(ResourceKind.GROUP),
    DELETION_POLICY,
)
