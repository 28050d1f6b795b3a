"""Replaces a broker's volume that is lost, one at a time (I34).

    no node can take the pod ─▶ the only node of its volume is gone, 5 min ─┐
    annotation penstock.dev/replace-volume: "<id>" ─────────────────────────┤
                              every record is elsewhere, and nobody else is down or behind
                                                                            ▼
                            claim and pod are deleted, by uid; the StatefulSet makes both again

The broker comes back with an empty directory: it loses its seats, and catches up as any replica.

A request is bound to the claim it is for as soon as it is seen (`1` becomes `1@<claim's uid>`), and
taken back once that claim is gone: whoever acts on it, and how often, it replaces one volume.
`1:accept-loss` also replaces one that nobody else has the records of. It is bound to the time as
well. For a broker that runs it stands for ten minutes, in which the operator restarts nothing and
puts nothing to sleep. Then it is taken back, also if the broker is down by then: whoever did not
look meanwhile, as in a pause, cannot tell why. Else a restart or a wake, weeks later, would give up
a volume that nobody thinks of any more. For a broker that is down it stands until it runs again
(`1:accept-loss@<claim's uid>@<time>@down`).

A claim that somebody else has deleted stays as long as its broker's pod, and goes with all records
when that stops. So nothing is restarted meanwhile, unless all of them are elsewhere. Pure.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from penstock.core.manifest.objects import ReplaceLost
from penstock.core.types import TopicPartition
from penstock_operator.model import (
    Action,
    AnswerRequest,
    BrokerFacts,
    Observed,
    PartitionState,
    PodState,
    Severity,
    Wait,
)
from penstock_operator.move_model import MoveFacts
from penstock_operator.names import REPLACE_VOLUME
from penstock_operator.objects import DesiredCluster
from penstock_operator.plan.gates import brokers_named, some, trusted
from penstock_operator.volume_model import (
    BoundNode,
    ClaimState,
    NodeState,
    ReplaceVolume,
)

LOST: Final = "VolumeLost"
REPLACING: Final = "ReplacingVolume"
EXPIRED: Final = "ReplaceVolumeExpired"
DELETED: Final = "VolumeDeleted"
ACCEPT_LOSS: Final = "accept-loss"
LOSS_STANDS_FOR: Final = timedelta(minutes=10)
"""How long a loss may be accepted before the broker is down."""
_DOWN: Final = "down"

Track = tuple[tuple[Action, ...], tuple[Wait, ...]]


@dataclass(frozen=True, slots=True)
class Request:
    """The annotation. `claim_uid`: what it is bound to; empty: nothing yet. `since`: when it was
    bound, RFC 3339; only if it accepts a loss. `is_of_one_down`: the broker was down then; an older
    operator does not say, and then it counts as one that ran."""

    broker_id: int
    accepts_loss: bool = False
    claim_uid: str = ""
    since: str = ""
    is_of_one_down: bool = False

    @classmethod
    def read(cls, text: str) -> "Request | None":
        """None: it is not in one of the forms."""
        asked, _, bound = text.partition("@")
        uid, _, when = bound.partition("@")
        since, at, state = when.partition("@")
        broker, colon, word = asked.partition(":")
        is_number = broker.isascii() and broker.isdecimal() and len(broker) < 10
        if not is_number or (colon and word != ACCEPT_LOSS) or (when and not _is_time(since)):
            return None
        if at and state != _DOWN:
            return None
        return cls(int(broker), bool(colon), uid, since, bool(at))

    @property
    def text(self) -> str:
        word = f":{ACCEPT_LOSS}" if self.accepts_loss else ""
        since = f"@{self.since}" if self.since else ""
        state = f"@{_DOWN}" if self.is_of_one_down else ""
        return f"{self.broker_id}{word}@{self.claim_uid}{since}{state}"

    def has_expired(self, now: str, *, runs: bool) -> bool:
        """Only if it accepts a loss, and is bound. `runs`: its broker does now."""
        if self.is_of_one_down and not runs:
            return False
        return datetime.fromisoformat(now) >= datetime.fromisoformat(self.expires)

    @property
    def expires(self) -> str:
        """RFC 3339; only if it accepts a loss, and is bound."""
        end = datetime.fromisoformat(self.since) + LOSS_STANDS_FOR
        return f"{end:%Y-%m-%dT%H:%M:%SZ}"


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def plan_volumes(desired: DesiredCluster, observed: Observed, made: int) -> Track:
    """Pods and claims are known. `made`: how many brokers the StatefulSet makes; it is there."""
    actions: list[Action] = []
    waits: list[Wait] = []
    request, answer = _request(desired, observed)
    for broker_id in range(min(desired.spec.brokers, made)):
        claim = observed.claims.get(broker_id)
        if claim is None:
            waits += _unfinished(observed, broker_id, claim)
        elif _runs(observed, broker_id) and (held := _would_lose(desired, observed, claim)):
            waits.append(held)
        elif request is not None and request.claim_uid == claim.uid:
            found = _requested(desired, observed, claim, request)
            actions, waits = [*actions, *found[0]], [*waits, *found[1]]
        elif (seen := observed.volumes.get(broker_id)) and seen.claim_uid == claim.uid:
            found = _stranded(desired, observed, claim, seen)
            actions, waits = [*actions, *found[0]], [*waits, *found[1]]
        else:
            waits += _unfinished(observed, broker_id, claim)
    return (*answer[0], *actions), (*answer[1], *waits)


def is_still_due(action: ReplaceVolume, desired: DesiredCluster, observed: Observed) -> bool:
    """Whether the same would be decided from what is known now."""
    return action in plan_volumes(desired, observed, action.broker_id + 1)[0]


def _request(desired: DesiredCluster, observed: Observed) -> tuple[Request | None, Track]:
    """The request, if it is bound; else None, and what is done about it."""
    text, brokers = desired.replace_volume, desired.spec.brokers
    if not text:
        return None, ((), ())
    asked = Request.read(text)
    if asked is None or asked.broker_id >= brokers:
        wrong = (
            f"annotation {REPLACE_VOLUME} is {text!r}; it must be the id of a broker, from 0 to "
            f'{brokers - 1}, or that with ":{ACCEPT_LOSS}"; no volume is replaced for it'
        )
        return None, ((), (Wait("InvalidRequest", wrong, Severity.BLOCKED),))
    claim = _claim_of(asked, observed)
    if claim is None:
        return None, ((AnswerRequest(REPLACE_VOLUME, None),), ())
    if not asked.claim_uid or (asked.accepts_loss and not asked.since):
        bound = replace(asked, claim_uid=claim.uid)
        if asked.accepts_loss:
            is_down = not _runs(observed, asked.broker_id)
            bound = replace(bound, since=observed.at, is_of_one_down=is_down)
        return None, ((AnswerRequest(REPLACE_VOLUME, bound.text),), ())
    runs = _runs(observed, asked.broker_id)
    if asked.accepts_loss and asked.has_expired(observed.at, runs=runs):
        minutes = LOSS_STANDS_FOR // timedelta(minutes=1)
        note = (
            f"annotation {REPLACE_VOLUME} accepted at {asked.since} that records of broker "
            f"{asked.broker_id} are lost, which counts for {minutes} min of one that runs; it is "
            "taken back, and the volume stays; write it again if it is still meant"
        )
        return None, ((AnswerRequest(REPLACE_VOLUME, None, EXPIRED, note),), ())
    return asked, ((), ())


def _claim_of(asked: Request, observed: Observed) -> ClaimState | None:
    """What it is for; None: that is gone."""
    claim = observed.claims.get(asked.broker_id)
    return claim if claim is not None and asked.claim_uid in {"", claim.uid} else None


def holds_restarts(desired: DesiredCluster, observed: Observed) -> Wait | None:
    """A broker would lose what only it has: its claim is deleted, or a loss is accepted for it
    while it runs, also if that is not bound yet. Only whoever asked for that shall stop it. Claims
    are known."""
    for _, each in sorted(observed.claims.items()):
        if held := _would_lose(desired, observed, each):
            return held
    request = Request.read(desired.replace_volume)
    if request is None or not request.accepts_loss or not _runs(observed, request.broker_id):
        return None
    if request.broker_id >= desired.spec.brokers:
        return None  # it is refused
    if _claim_of(request, observed) is None:
        return None  # it is taken back
    text = (
        f"nothing is restarted while annotation {REPLACE_VOLUME} accepts that records of broker "
        f"{request.broker_id} are lost as soon as it is down; stop it, or take the annotation back"
    )
    return Wait(REPLACING, text)


def _would_lose(desired: DesiredCluster, observed: Observed, claim: ClaimState) -> Wait | None:
    """Why the pod that keeps a claim from going must not stop; None: none does, or it may."""
    broker_id, facts = claim.broker_id, trusted(observed)
    pod = observed.pods.get(broker_id)
    if not claim.deleting or pod is None or pod.terminating or not pod.node:
        return None
    if facts is not None and not any(broker_id in each.replicas for each in facts.partitions):
        return None
    request, _ = _request(desired, observed)
    accepts = request is not None and request.accepts_loss and request.claim_uid == claim.uid
    hindrance = _not_elsewhere(desired, observed, claim, accepts_loss=accepts)
    if hindrance is None:
        return None
    text = (
        f"claim {claim.name} is being deleted, and the records of broker {broker_id} go with it "
        f"when its pod stops, so nothing is restarted: copy them away first (penstock broker drain "
        f"{broker_id}), then kubectl delete pod {pod.name}; not all of them are safe elsewhere: "
        f"{hindrance.text}"
    )
    return Wait(DELETED, text, Severity.BLOCKED)


def _runs(observed: Observed, broker_id: int) -> bool:
    pod = observed.pods.get(broker_id)
    return _is_up(pod, trusted(observed), observed.moves, broker_id)


def _requested(
    desired: DesiredCluster, observed: Observed, claim: ClaimState, request: Request
) -> Track:
    hindrance = _hindrance(desired, observed, claim, accepts_loss=request.accepts_loss)
    if hindrance is None:
        lost = _only_here(observed, claim.broker_id) if request.accepts_loss else ()
        why = "by request" + (f"; what only it had is given up: {some(lost)}" if lost else "")
        return _replace(observed, claim, why)
    text = f"broker {claim.broker_id} does not get a new volume yet: {hindrance.text}"
    if request.accepts_loss and _runs(observed, claim.broker_id):
        text = f"{text}; the request is taken back at {request.expires}"
    return (), (Wait(REPLACING, text, hindrance.severity),)


def _stranded(
    desired: DesiredCluster, observed: Observed, claim: ClaimState, seen: BoundNode
) -> Track:
    volume = f"the volume of broker {claim.broker_id} ({claim.name})"
    if seen.state is NodeState.THERE or claim.deleting:
        return (), _unfinished(observed, claim.broker_id, claim)
    if seen.state is NodeState.UNKNOWN:
        text = f"it is not known whether {volume} went with its node, and it stays: {seen.problem}"
        return (), (Wait("NotRead", text),)
    lead = f"{volume} can only be used on node {seen.node}, which is gone"
    if desired.spec.replace_lost is ReplaceLost.NEVER:
        text = (
            f"{lead}; spec.storage.replaceLost is Never: bring the node back, or ask for a new one "
            f'with annotation {REPLACE_VOLUME}: "{claim.broker_id}"'
        )
        return (), (Wait(LOST, text, Severity.BLOCKED),)
    if seen.state is NodeState.GONE:
        text = f"{lead}; it is replaced once that has been so for 5 min"
        return (), (Wait(LOST, text),)
    hindrance = _hindrance(desired, observed, claim, accepts_loss=False)
    if hindrance is None:
        return _replace(observed, claim, f"node {seen.node} is gone for 5 min")
    text = f"{lead} for 5 min; it is not replaced yet: {hindrance.text}"
    return (), (Wait(LOST, text, hindrance.severity),)


def _replace(observed: Observed, claim: ClaimState, why: str) -> Track:
    broker_id = claim.broker_id
    pod = observed.pods.get(broker_id)
    # Once the claim goes, only a pod that a node has keeps it from going.
    keeps = pod is not None and not pod.terminating and bool(pod.node)
    if claim.deleting and not keeps:
        return (), _unfinished(observed, broker_id, claim)
    name, uid = (pod.name, pod.uid) if pod is not None and not pod.terminating else ("", "")
    action = ReplaceVolume(broker_id, claim.name, claim.uid, name, uid, why)
    return (action,), (Wait(REPLACING, f"broker {broker_id} gets a new volume: {why}"),)


def _unfinished(observed: Observed, broker_id: int, claim: ClaimState | None) -> tuple[Wait, ...]:
    """What a replacement that has begun waits for; nothing unless one has."""
    pod, facts = observed.pods.get(broker_id), observed.brokers
    if claim is not None and claim.deleting:
        text = f"broker {broker_id} gets a new volume once claim {claim.name} is gone"
        if pod is not None and pod.terminating and pod.node:
            text = (
                f"{text}, which pod {pod.name} still uses: node {pod.node} has to confirm that it "
                f"has stopped; if that node never comes back: kubectl delete node {pod.node}"
            )
        elif pod is not None and pod.node:
            text = f"{text}, which is when pod {pod.name} stops: kubectl delete pod {pod.name}"
        return (Wait(REPLACING, text),)
    known = None if facts is None else facts.brokers.get(broker_id)
    if known is None or known.alive or (claim is not None and claim.volume):
        return ()
    made = "the claim is not there yet" if claim is None else f"{claim.name} has no volume yet"
    return (Wait(REPLACING, f"broker {broker_id} gets a new volume: {made}"),)


# ── What stands in the way ────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Hindrance:
    text: str
    severity: Severity = Severity.PROGRESS


def _hindrance(
    desired: DesiredCluster, observed: Observed, claim: ClaimState, *, accepts_loss: bool
) -> _Hindrance | None:
    """The first reason why this broker's volume must stay; None: it may go.

    `accepts_loss`: whoever asks takes the consequences. Even then the broker has to be down.
    """
    broker_id, facts = claim.broker_id, trusted(observed)
    pod = observed.pods.get(broker_id)
    if _is_up(pod, facts, observed.moves, broker_id):
        text = (
            f"it is running; stop it (kubectl delete pod {desired.names.pod(broker_id)}) to have "
            "its volume replaced as soon as it is down"
        )
        return _Hindrance(text, Severity.BLOCKED)
    return _not_elsewhere(desired, observed, claim, accepts_loss=accepts_loss)


def _not_elsewhere(
    desired: DesiredCluster, observed: Observed, claim: ClaimState, *, accepts_loss: bool
) -> _Hindrance | None:
    """The first reason why this broker's records may be lost with it, or it be missed."""
    broker_id, facts = claim.broker_id, trusted(observed)
    pod = observed.pods.get(broker_id)
    if not claim.volume:
        return None  # nothing was ever stored there
    if facts is None:
        if accepts_loss and not any(each.ready for each in observed.pods.values()):
            return _unless_it_starts(pod, claim)  # nobody is there who could be asked
        return _nobody_says(observed, broker_id)
    if accepts_loss:
        return None
    moves = observed.moves
    if moves is None or moves.moving.paused:
        why = "the metadata store is unavailable" if moves is not None else observed.moves_problem
        return _Hindrance(f"the controller has to say which replicas are damaged: {why}")
    return next(_of_others(desired, observed, broker_id), None)


def _nobody_says(observed: Observed, broker_id: int) -> _Hindrance:
    """Who else has its records is not known."""
    ask = "the brokers have to say what else has its records"
    others = sorted(
        one
        for one, seen in observed.volumes.items()
        if one != broker_id and seen.state is NodeState.LOST
    )
    facts = observed.brokers
    if (
        not others
        or facts is None
        or facts.controller_reachable
        or not _is_majority_lost(facts, {broker_id, *others})
    ):
        why = observed.brokers_problem or "their answer cannot be trusted"
        return _Hindrance(f"{ask}: {why}")
    text = (
        f"{brokers_named(others)} {'is' if len(others) == 1 else 'are'} lost, too; {ask}, and no "
        "controller takes over before a majority of them answers: bring a node back, or, if that "
        "can never be, set controller.takeover.min.brokers in spec.config to how many are left"
    )
    return _Hindrance(text, Severity.BLOCKED)


def _is_majority_lost(facts: BrokerFacts, lost: set[int]) -> bool:
    """So many that the other registered brokers cannot let a controller take over."""
    known = facts.brokers.keys()
    return len(known - lost) < len(known) // 2 + 1


def _unless_it_starts(pod: PodState | None, claim: ClaimState) -> _Hindrance | None:
    """A broker that waits for a controller is not ready, and may have all its records: after a
    wake, or a power cut, every one of them does."""
    if pod is not None and pod.trouble:
        return None
    text = (
        "nobody can be asked, and nothing says that it cannot run; if it never does: "
        f"kubectl delete pvc {claim.name}, and then its pod"
    )
    return _Hindrance(text)


def _is_up(
    pod: PodState | None, facts: BrokerFacts | None, moves: MoveFacts | None, broker_id: int
) -> bool:
    """By anybody's word."""
    known = None if facts is None else facts.brokers.get(broker_id)
    placed = None if moves is None else moves.broker(broker_id)
    is_alive = (known is not None and known.alive) or (placed is not None and placed.alive)
    return is_alive or (pod is not None and pod.ready)


def _of_others(desired: DesiredCluster, observed: Observed, broker_id: int) -> Iterator[_Hindrance]:
    """In the order of what a person has to know first. The budget is one broker."""
    facts, moves = observed.brokers, observed.moves
    assert facts is not None, "they are trusted"
    assert moves is not None, "the controller has said it"
    way_past = f'annotation {REPLACE_VOLUME}: "{broker_id}:{ACCEPT_LOSS}"'
    alone = _only_here(observed, broker_id)
    if alone:
        text = (
            f"nobody else has all records of {some(alone)}; bring back a broker that has, or give "
            f"up what only this volume has with {way_past}"
        )
        yield _Hindrance(text, Severity.BLOCKED)
    alive = {one for one, state in facts.brokers.items() if state.alive}
    wanted = {*range(desired.spec.brokers), *facts.brokers}
    if down := sorted(wanted - alive - {broker_id}):
        text = (
            f"{brokers_named(down)} {'is' if len(down) == 1 else 'are'} down, too, and one volume "
            f"is replaced at a time; start {'it' if len(down) == 1 else 'them'}, or replace this "
            f"one nevertheless with {way_past}"
        )
        yield _Hindrance(text, Severity.BLOCKED)
    heard = {one.broker_id for one in moves.moving.brokers if one.software_version}
    if unheard := sorted(alive - heard - {broker_id}):
        # A controller that took over believes that who lived still does, for a session timeout.
        verb = "has" if len(unheard) == 1 else "have"
        yield _Hindrance(f"{brokers_named(unheard)} {verb} to register with the new controller")
    # A broker that runs has others in sync while it leads, and a roll moves that away first.
    if broker_id not in alive and (unled := _unled(facts, broker_id, alive)):
        yield _Hindrance(f"another broker has to lead {some(unled)}")
    going = sorted(one.broker_id for one in observed.claims.values() if one.deleting)
    if replaced := [one for one in going if one != broker_id]:
        yield _Hindrance(f"the volume of {brokers_named(replaced)} is being replaced")
    harmed = [one for one in moves.moving.moves if set(one.damaged) - {broker_id}]
    if harmed:
        where = f"{harmed[0].where.topic}-{harmed[0].where.partition}"
        yield _Hindrance(f"a replica of {where} on another broker is damaged")
    behind = tuple(
        one for one in facts.partitions if set(one.replicas) - set(one.isr) - {broker_id}
    )
    if behind:
        yield _Hindrance(f"other replicas have to catch up first: {some(behind)}")


def _unled(facts: BrokerFacts, broker_id: int, others: set[int]) -> tuple[PartitionState, ...]:
    """Partitions of the broker that none of the others leads. Who opens its logs is in sync by what
    it was, and may yet find them damaged or missing."""
    return tuple(
        one for one in facts.partitions if broker_id in one.replicas and one.leader not in others
    )


def _only_here(observed: Observed, broker_id: int) -> tuple[PartitionState, ...]:
    """Partitions of the broker that no other one has a live, sound replica in the ISR of."""
    facts, moves = observed.brokers, observed.moves
    if facts is None:
        return ()
    alive = {one for one, state in facts.brokers.items() if state.alive} - {broker_id}
    damaged = {} if moves is None else {one.where: one.damaged for one in moves.moving.moves}
    return tuple(
        one
        for one in facts.partitions
        if broker_id in one.replicas
        and not alive
        & set(one.isr) - set(damaged.get(TopicPartition(one.topic, one.partition), ()))
    )
