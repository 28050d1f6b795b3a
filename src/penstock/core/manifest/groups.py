"""Checks of a ConsumerGroup's fields against each other.

The CRD has the same rules as CEL, generated from the same `RESET_VALUES`.
"""

import re

from penstock.core.manifest.objects import ConsumerGroupSpec, OffsetReset, ScaleTarget
from penstock.core.manifest.problems import Report
from penstock.core.manifest.schema_groups import RESET_VALUES


def check_group(spec: ConsumerGroupSpec, report: Report) -> None:
    """Checks across fields; the rows have checked each field alone."""
    if spec.offset_reset is not None:
        _check_reset(spec.offset_reset, report)
    if spec.scale_target is not None:
        _check_scaling(spec.scale_target, report)


def _check_reset(reset: OffsetReset, report: Report) -> None:
    path = "spec.offsetReset.value"
    to = reset.to.value
    if to not in RESET_VALUES:
        if reset.value:
            report.add(path, f"has no meaning when spec.offsetReset.to is {to}; remove it")
        return
    pattern, wanted = RESET_VALUES[to]
    if not re.fullmatch(pattern, reset.value):
        seen = f"is {reset.value!r}" if reset.value else "is missing"
        report.add(path, f"{seen}; it must be {wanted}, because spec.offsetReset.to is {to}")


def _check_scaling(target: ScaleTarget, report: Report) -> None:
    if target.min_replicas > target.max_replicas:
        report.add(
            "spec.scaleTarget.minReplicas",
            f"is {target.min_replicas}; it must not be more than spec.scaleTarget.maxReplicas, "
            f"which is {target.max_replicas}",
        )
