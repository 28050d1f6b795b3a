"""When an upgrade is finalized: by a person, or an hour after it is complete (I36).

    a newer format than is stored can be written, by controllers and brokers of one release
        ─▶ condition FormatPending ─▶ Manual: until somebody finalizes
                                   └▶ Automatic: 1 h later, once every broker is there

The hour is counted from the condition's own lastTransitionTime, so it goes on under another
operator. A roll, one that is to come, or servers of two releases take the condition away, and the
hour begins again; a broker that is down, or an answer that is missing, only has it wait. Pure.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from penstock.core.manifest.upkeep import FinalizePolicy
from penstock_operator.format_model import (
    FORMAT_PENDING,
    NEWEST_FORMAT,
    FinalizeFormat,
    FormatPending,
)
from penstock_operator.model import Object, Observed
from penstock_operator.move_model import MoveFacts
from penstock_operator.objects import DesiredCluster, Section
from penstock_operator.objects.broker import live_template_hash
from penstock_operator.plan.gates import brokers_named, is_serving, trusted
from penstock_operator.plan.upgrade import image_of, wanted_images

FINALIZED_AFTER: Final = timedelta(hours=1)
COMMAND: Final = "kubectl penstock cluster finalize"

Track = tuple[tuple[FinalizeFormat, ...], FormatPending | None]


def plan_finalize(desired: DesiredCluster, observed: Observed) -> Track:
    """What is asked for, and what is said; None: what was said last stays (or nobody answers).

    The StatefulSet, the Deployment and the pods are known.
    """
    moves = observed.moves
    if trusted(observed) is None or moves is None:
        return (), None
    stored, newest = moves.moving.format, moves.moving.newest_format
    if stored >= newest:
        if observed.format_said.reason in {"", NEWEST_FORMAT}:
            return (), None
        return (), FormatPending(False, NEWEST_FORMAT, "the stored metadata has the newest format")
    lead = f"the stored metadata has format {stored}, and could have {newest}"
    if unfinished := next(_unfinished(desired, observed, moves, newest), ""):
        return (), FormatPending(False, "UpgradeNotComplete", f"{lead}; first {unfinished}")
    lead = f"{lead}: every broker and controller runs a release that reads it"
    if desired.spec.finalize is FinalizePolicy.MANUAL:
        text = (
            f"{lead}. What is new in it is refused, and the release before can be started again, "
            f"until somebody finalizes: {COMMAND}"
        )
        return (), FormatPending(True, FORMAT_PENDING, text)
    waits_for = next(_absent(desired, observed, moves), "")
    if waits_for:
        lead = f"{lead}. It waits for {waits_for}"
    pending = FormatPending(True, FORMAT_PENDING, lead, automatic=True)
    since = observed.format_said.since
    is_due = bool(since) and _moment(observed.at) >= due(since)
    return ((FinalizeFormat(newest),) if is_due and not waits_for else ()), pending


def due(since: str) -> datetime:
    """When it is finalized. `since`: when the condition began to hold, RFC 3339."""
    return _moment(since) + FINALIZED_AFTER


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _unfinished(
    desired: DesiredCluster, observed: Observed, moves: MoveFacts, newest: int
) -> Iterator[str]:
    """Why not everything runs one release that reads the newest format."""
    names = desired.names
    controllers = observed.live("Deployment", names.controller)
    brokers = observed.live("StatefulSet", names.broker)
    if controllers is None or brokers is None:
        yield "brokers and controllers have to be there"
        return
    images = image_of(brokers), image_of(controllers)
    if not _is_updated(controllers):
        yield "the controllers have to restart"
    outdated = [
        at
        for at, pod in sorted(observed.pods.items())
        if pod.template_hash != live_template_hash(brokers)
    ]
    if outdated:
        yield f"{brokers_named(outdated)} {_has(outdated)} to restart"
    if len(set(images)) > 1:
        named = " and ".join(sorted(set(images)))
        yield f"brokers and controllers have to run one image, not {named}"
    if desired.knows(Section.TEMPLATE) and images != wanted_images(desired, observed):
        yield "brokers and controllers have to get the image that is wanted now"
    told = [one for one in moves.moving.brokers if one.software_version]
    releases = {one.software_version for one in told}
    if len(releases) > 1:
        yield f"all brokers have to run one release, not {' and '.join(sorted(releases))}"
    if behind := [one.broker_id for one in told if newest not in one.formats]:
        verb = "does not read it" if len(behind) == 1 else "do not read it"
        yield f"another release is needed: {brokers_named(behind)} {verb}"


def _absent(desired: DesiredCluster, observed: Observed, moves: MoveFacts) -> Iterator[str]:
    """Whom it has to wait for: the controller refuses it, too, while one is down."""
    facts = observed.brokers
    assert facts is not None, "they are trusted"
    if moves.moving.paused:
        yield "the metadata store, which is unavailable"
    known = {one.broker_id for one in moves.moving.brokers if one.alive and one.software_version}
    registered = {one.broker_id for one in moves.moving.brokers} | set(facts.brokers)
    serving = {at for at, pod in observed.pods.items() if is_serving(pod, facts)}
    wanted = set(range(desired.spec.brokers))
    if away := sorted((registered - known) | (wanted - (known & serving))):
        yield f"{brokers_named(away)}, which {'does' if len(away) == 1 else 'do'} not serve"


def _has(brokers: list[int]) -> str:
    return "has" if len(brokers) == 1 else "have"


def _is_updated(deployment: Object) -> bool:
    """Every replica has the newest template; one that starts again is not another release."""
    status: Object = deployment.get("status") or {}
    wanted: int = deployment["spec"].get("replicas", 1)
    is_seen = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 1)
    is_alone = status.get("replicas", 0) <= wanted
    return bool(is_seen and is_alone and status.get("updatedReplicas", 0) >= wanted)
