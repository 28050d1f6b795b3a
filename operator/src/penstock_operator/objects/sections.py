"""The spec of a Cluster in sections: a mistake in one holds up what is made from that one, no more.

    spec ─▶ check ─▶ nothing wrong ─────────────────────────────▶ as it is
                 └─▶ sections that are wrong ─▶ last record ────▶ as they last were, and a wait
                                            └─▶ no record ──────▶ unknown, and a wait

The record is an annotation of the StatefulSet and of the Deployment: the spec they were made from.
So a broken section is not replaced by defaults, and everything else is decided as if the mistake
had not been made (I28). An unknown section keeps what is live as it is: nothing is made from it.
Fields that this operator does not know, which a newer one has recorded, do not count: otherwise the
whole record would be refused after a way back.
Pure.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from penstock.core.manifest.fields import Report, known_fields, read_fields
from penstock.core.manifest.objects import ClusterSpec, SecurityMode
from penstock.core.manifest.schema import CLUSTER_SPEC
from penstock.core.manifest.settings import check_cluster_settings
from penstock_operator.model import Object, Severity, Wait
from penstock_operator.names import MADE_FROM
from penstock_operator.objects.images import is_allowed, repository


class Section(Enum):
    """A part of the spec that is right or wrong by itself."""

    STORAGE = "storage"
    BROKERS = "brokers"
    TEMPLATE = "template"
    POLICY = "policy"


_SECTIONS: Final = {
    "storage": Section.STORAGE,
    "brokers": Section.BROKERS,
    "access": Section.POLICY,
    "allowFrom": Section.POLICY,
    "balance": Section.POLICY,
    "deletionPolicy": Section.POLICY,
    "hibernate": Section.POLICY,
    "quotas": Section.POLICY,
    "upgrade": Section.POLICY,
}
"""By field of the spec; all others, and those that are not known, are of the template."""
_CHECKED_TOGETHER: Final = frozenset({Section.BROKERS, Section.TEMPLATE})
"""A replication factor may be too large for the brokers: then neither counts without the other."""
_NOT_RECORDED: Final = frozenset({"access", "quotas"})
"""The brokers store them; nothing in Kubernetes is made from them."""
_RECORD_BYTES_MAX: Final = 128 * 1024
"""Half of what the annotations of an object may have."""


@dataclass(frozen=True, slots=True)
class Last:
    """What the Cluster was last made from. `knows`: sections that are there completely."""

    spec: Mapping[str, Any] = field(default_factory=dict)
    knows: frozenset[Section] = frozenset()


@dataclass(frozen=True, slots=True)
class Chosen:
    """A spec that can be used.

    Attributes:
        spec: Fields as they were written, now or earlier.
        waits: What is wrong with the present one; empty: nothing.
        unknown: Sections that were wrong whenever they were read.
    """

    spec: Object
    waits: tuple[Wait, ...] = ()
    unknown: frozenset[Section] = frozenset()


def section_of(path: str) -> frozenset[Section]:
    """Of a path such as `spec.storage.size`; the spec itself is in all of them."""
    _, _, below = path.partition(".")
    if not below:
        return frozenset(Section)
    name = below.partition(".")[0].partition("[")[0]
    return frozenset({_SECTIONS.get(name, Section.TEMPLATE)})


def choose(subject: str, given: object, last: Last, allowed_images: Sequence[str]) -> Chosen:
    """`subject`: for messages, `Cluster/flights`. `allowed_images`: see `images.is_allowed`."""
    refused = _refusals(subject, given, allowed_images)
    present: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    if not refused:
        return Chosen(dict(present))
    broken = frozenset(section for sections, _ in refused for section in sections)
    waits = tuple(dict.fromkeys(wait for _, wait in refused))
    both = broken | _CHECKED_TOGETHER
    for replaced, by in ((broken, last), (both, last), (both, Last())):
        spec = _without(present, replaced) | _without(by.spec, frozenset(Section) - replaced)
        if not _refusals(subject, spec, allowed_images):
            return Chosen(spec, waits, replaced - by.knows)
    return Chosen({}, waits, frozenset(Section))


def _without(spec: Mapping[str, Any], sections: frozenset[Section]) -> Object:
    return {key: value for key, value in spec.items() if not section_of(f"spec.{key}") <= sections}


def _refusals(
    subject: str, given: object, allowed_images: Sequence[str]
) -> list[tuple[frozenset[Section], Wait]]:
    """Why a spec cannot be used, and which of its sections."""
    report = Report(subject)
    typed = ClusterSpec.from_values(read_fields(CLUSTER_SPEC, given, "spec", report))
    check_cluster_settings(typed, report)
    found = [
        (section_of(problem.path), Wait("InvalidSpec", str(problem), Severity.BLOCKED))
        for problem in report.problems
    ]
    if typed.image and not is_allowed(typed.image, allowed_images):
        text = _not_allowed(typed.image, allowed_images)
        wait = Wait("ImageNotAllowed", text, Severity.BLOCKED)
        found.append((frozenset({Section.TEMPLATE}), wait))
    return found


def _not_allowed(image: str, allowed_images: Sequence[str]) -> str:
    allowed = ", ".join(dict.fromkeys(allowed_images))
    return (
        f"spec.image is {image}, but this operator allows images of {allowed} only; the pods stay "
        "as they are; name another image, or have whoever installed the operator add "
        f"{repository(image)} to its allowedImages"
    )


# ── The record ────────────────────────────────────────────────────────────────────────────


def record_of(chosen: Chosen) -> str:
    """The annotation that says what an object was made from; empty: it cannot be said."""
    if chosen.unknown:
        return ""
    kept = {key: value for key, value in chosen.spec.items() if key not in _NOT_RECORDED}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"))
    return text if len(text.encode()) <= _RECORD_BYTES_MAX else ""


def last_of(made: Sequence[Object | None]) -> Last:
    """From live objects, the StatefulSet first; those that are None do not exist."""
    for each in made:
        if each is None:
            continue
        annotations: Mapping[str, str] = each["metadata"].get("annotations") or {}
        spec = _parsed(annotations.get(MADE_FROM, ""))
        if spec is not None:
            return Last(known_fields(CLUSTER_SPEC, spec), frozenset(Section))
    stateful_set = made[0] if made else None
    return Last() if stateful_set is None else _seen_in(stateful_set)


def _parsed(text: str) -> Object | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _seen_in(stateful_set: Object) -> Last:
    """What a StatefulSet shows of its Cluster's spec that was made before there were records."""
    spec, template = stateful_set["spec"], stateful_set["spec"]["template"]
    claim = spec["volumeClaimTemplates"][0]["spec"]
    shown: Object = {
        "brokers": spec.get("replicas", 1),
        "storage": {"size": claim["resources"]["requests"]["storage"]},
    }
    # Of the template, only what tells how brokers are called, and where they are.
    mode = SecurityMode.of_pod(template)
    if mode is not None:
        shown["security"] = {"mode": mode.value}
    if "storageClassName" in claim:
        shown["storage"]["storageClassName"] = claim["storageClassName"]
    spread = template["spec"].get("topologySpreadConstraints")
    if spread:
        shown["rack"] = {"topologyKey": spread[0]["topologyKey"]}
    return Last(shown, frozenset({Section.STORAGE, Section.BROKERS}))
