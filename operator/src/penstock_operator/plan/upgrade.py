"""What this operator would give the pods of a Cluster, and has not (`plan.pinning` says why).

A plan's id is a fingerprint of the templates it leads to: whoever computes it, it stays the same
until it is carried out, and who approves it approves no other. Pure.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock.core.manifest.status import UPGRADE_CHANGES_MAX
from penstock_operator.compare import contains
from penstock_operator.model import Object, Observed
from penstock_operator.names import TEMPLATE_HASH
from penstock_operator.objects import DesiredCluster, Section
from penstock_operator.objects.broker import live_template_hash, template_hash
from penstock_operator.objects.controller import deployment
from penstock_operator.objects.pods import fingerprint
from penstock_operator.plan.outlook import Outlook, outlook
from penstock_operator.plan.pinning import Pods, broker_pods, controller_pods, own_container
from penstock_operator.plan.security import Stage, staged

_VALUE_MAX: Final = 80
_SKIPPED: Final = frozenset({TEMPLATE_HASH})


@dataclass(frozen=True, slots=True)
class Upgrade:
    """`before`, `after`: images. `changes`: for people. `ahead`: how brokers would restart; None:
    it is not known now."""

    plan: str
    before: str
    after: str
    changes: tuple[str, ...]
    ahead: Outlook | None


def next_stage(desired: DesiredCluster, observed: Observed) -> Stage:
    """The next step towards the spec's mode, with the newest templates if they are approved."""
    stage = staged(desired, observed)
    if not desired.approved or desired.approved != _plan_id(stage):
        return stage
    return replace(
        stage,
        brokers=replace(stage.brokers, takes_newest=True),
        rest=replace(stage.rest, takes_newest=True),
    )


def wanted_hash(desired: DesiredCluster, observed: Observed) -> str:
    """Of the template that brokers' pods should have."""
    live = observed.live("StatefulSet", desired.names.broker)
    if live is not None and not desired.knows(Section.TEMPLATE):
        return live_template_hash(live)
    return _brokers(next_stage(desired, observed), observed).hash


def wanted_images(desired: DesiredCluster, observed: Observed) -> tuple[str, str]:
    """Of brokers and controllers, as they should be by now. The template is known."""
    brokers, controllers = _servers(next_stage(desired, observed), observed)
    return image_of(brokers.wanted), image_of(controllers.wanted)


def upgrade_of(desired: DesiredCluster, observed: Observed) -> Upgrade | None:
    """None: the pods have what new ones would get, or there are none."""
    brokers = observed.live("StatefulSet", desired.names.broker)
    controllers = observed.live("Deployment", desired.names.controller)
    if brokers is None or controllers is None or not desired.knows(Section.TEMPLATE):
        return None
    stage = next_stage(desired, observed)
    made = _servers(stage, observed)
    if all(each.is_newest for each in made):
        return None
    changes = [
        *_changes("controllers", made[1]),
        *_changes("brokers", made[0]),
    ]
    more = len(changes) - UPGRADE_CHANGES_MAX
    if more > 0:
        changes = [*changes[: UPGRADE_CHANGES_MAX - 1], f"and {more + 1} more"]
    images = image_of(made[0].wanted), image_of(made[0].newest)
    ahead = None
    if not made[0].is_newest:
        ahead = outlook(desired, observed, sorted(observed.pods), is_first=True)
        if ahead is not None and images[0] != images[1]:
            ahead = ahead.after(desired.spec.soak_s)
    return Upgrade(_plan_id(stage), *images, tuple(changes), ahead)


def _brokers(stage: Stage, observed: Observed) -> Pods:
    names = stage.brokers.names
    live = observed.live("StatefulSet", names.broker)
    return broker_pods(stage.brokers, 0, live, observed.live("Deployment", names.controller))


def _servers(stage: Stage, observed: Observed) -> tuple[Pods, Pods]:
    """Of brokers and controllers."""
    names = stage.rest.names
    brokers = observed.live("StatefulSet", names.broker)
    controllers = observed.live("Deployment", names.controller)
    return _brokers(stage, observed), controller_pods(stage.rest, controllers, brokers)


def _plan_id(stage: Stage) -> str:
    controllers = deployment(stage.rest)["spec"]["template"]
    return fingerprint([template_hash(stage.brokers), fingerprint(controllers)])


def image_of(made: Object) -> str:
    """The image of a StatefulSet's or Deployment's pods; empty: none is named."""
    return str(own_container(made["spec"]["template"]).get("image", ""))


def _changes(whose: str, made: Pods) -> list[str]:
    if made.is_newest:
        return []
    live, newest = made.wanted["spec"]["template"], made.newest["spec"]["template"]
    found = [f"{whose}: {text}" for text in _differences(live, newest, "")]
    return found or [f"{whose}: fields that are no longer set"]


def _differences(live: Any, newest: Any, path: str) -> Iterator[str]:
    """What `newest` sets otherwise; what the server added to `live` is none."""
    if contains(live, newest):
        return
    if isinstance(live, Mapping) and isinstance(newest, Mapping):
        for key, value in newest.items():
            if key not in _SKIPPED:
                yield from _differences(live.get(key), value, f"{path}.{key}" if path else key)
    elif isinstance(live, list) and isinstance(newest, list) and len(live) == len(newest):
        for number, (one, other) in enumerate(zip(live, newest, strict=True)):
            yield from _differences(one, other, f"{path}[{number}]")
    elif isinstance(live, list) and isinstance(newest, list):
        added = [each for each in newest if each not in live]
        yield f"{path}: {len(live)} entries become {len(newest)}; new: {_shown(added)}"
    else:
        yield f"{path}: {_shown(live)} becomes {_shown(newest)}"


def _shown(value: Any) -> str:
    text = "nothing" if value in (None, []) else str(value)
    return text if len(text) <= _VALUE_MAX else f"{text[:_VALUE_MAX]}…"
