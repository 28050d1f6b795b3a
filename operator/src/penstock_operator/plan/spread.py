"""New brokers get their share of the replicas: once, onto them only, unless somebody says no.

    fresh brokers serve, nobody is drained ─▶ plan (core/balance) ─▶ moves, in waves ─▶ not fresh
                                                    └─ balance.mode Manual: once approved

A broker is fresh, by its registration, from its first start with an empty directory until the
controller is told that it has its share, or until somebody cancels a move of a spread. So nothing
is remembered here, and nothing that was cancelled comes again. Pure.
"""

from collections.abc import Collection

from penstock.client import BrokerChange, BrokerPlacement
from penstock.client.admin.receiving import receiving, seconds_left
from penstock.core import balance
from penstock.core.balance.shortage import gib
from penstock.core.control.documents import FORMAT_MOVES
from penstock.core.manifest.upkeep import BalanceMode
from penstock.core.types import BrokerId, MoveReason
from penstock_operator.model import Action, MoveReplicas, Observed, Wait
from penstock_operator.move_model import MarkSpread, MoveFacts, Offer
from penstock_operator.objects import DesiredCluster
from penstock_operator.objects.pods import fingerprint
from penstock_operator.plan.drain import plan_cancel
from penstock_operator.plan.gates import brokers_named, is_serving, trusted
from penstock_operator.plan.waves import has_room, next_wave, open_moves
from penstock_operator.progress import figures

Track = tuple[tuple[Action, ...], tuple[Wait, ...], Offer | None]


def plan_spread(desired: DesiredCluster, observed: Observed) -> Track:
    """The next moves onto fresh brokers, how far those that run are, and what could begin."""
    moves = observed.moves
    if trusted(observed) is None or moves is None:
        return (), (), None
    waits = _running(moves)
    onto = _ready(desired, observed, moves)
    if not onto or moves.seen is None or moves.moving.paused:
        return (), waits, None
    if not all(has_room(opened) for opened in open_moves(moves.moving.moves).values()):
        return (), waits, None
    made = balance.plan(
        moves.seen.facts, balance.Spread(tuple(BrokerId(one.broker_id) for one in onto))
    )
    if isinstance(made, balance.Infeasible):
        return (), waits, None  # one of them has just become unusable
    if not made.moves:
        changes = (BrokerChange(each.broker_id, None, each.directory_id, True) for each in onto)
        return (MarkSpread(tuple(changes)),), waits, None
    offer = _offer(onto, made)
    if desired.spec.balance_mode is BalanceMode.MANUAL and desired.approved != offer.plan:
        return (), waits, offer
    wave = next_wave(made, moves.seen)
    action = MoveReplicas(wave, MoveReason.SPREAD, offer.text)
    return ((action,) if wave else ()), waits, offer


def _ready(
    desired: DesiredCluster, observed: Observed, moves: MoveFacts
) -> tuple[BrokerPlacement, ...]:
    """The fresh brokers, once all that are still starting can be among them; drains go first."""
    wanted, facts = desired.spec.brokers, observed.brokers
    assert facts is not None, "they are trusted"
    is_draining = observed.last_broker(desired.names.broker) >= wanted
    if moves.moving.format < FORMAT_MOVES or is_draining or plan_cancel(moves, wanted):
        return ()
    pods = {broker_id: observed.pods.get(broker_id) for broker_id in range(wanted)}
    serving = {broker_id for broker_id, pod in pods.items() if is_serving(pod, facts)}
    # One whose container fails may never start, and holds up nobody.
    starting = {at for at, pod in pods.items() if pod is None or not pod.trouble} - serving
    if starting:
        return ()
    return tuple(
        one
        for one in moves.moving.brokers
        if one.fresh
        and one.alive
        and one.broker_id in serving
        and not (one.cordon is not None and one.cordon.placement)
    )


def _offer(onto: Collection[BrokerPlacement], made: balance.Plan) -> Offer:
    brokers = [[one.broker_id, one.directory_id] for one in onto]
    copied, minutes = made.copied_bytes, made.minutes
    text = f"{_partitions(len(made.moves))} to {brokers_named([one.broker_id for one in onto])}"
    if copied:  # nobody may know it
        text = f"{text}, {gib(copied)} to copy"
    if copied and minutes:
        text = f"{text}, about {minutes} min"
    return Offer(fingerprint(["spread", brokers]), len(made.moves), copied, minutes, text)


def _partitions(count: int) -> str:
    return f"{count} partitions move" if count != 1 else "1 partition moves"


def _running(moves: MoveFacts) -> tuple[Wait, ...]:
    """Also of a spread that a person has submitted."""
    open_ones = [one for one in moves.moving.moves if one.target]
    going = [one for one in open_ones if one.reason is MoveReason.SPREAD]
    if not going:
        return ()
    onto = sorted({each for one in going for each in one.target if each not in one.replicas})
    copying = sum(bool(one.adding) for one in going)
    copies = [copy for one in going for copy in one.copies]
    left = sum(copy.bytes_left for copy in copies)
    rate = sum(copy.bytes_per_second for copy in copies)
    seconds = seconds_left(receiving(going, {}).values())
    text = (
        f"spreading: {_partitions(len(going))} to {brokers_named(onto)}, {copying} of them now"
        f"{figures(left, rate, ' left', seconds=seconds)}"
        "; penstock partitions cancel --all ends that"
    )
    held = [one for one in going if one.waiting_for]
    if held:
        text = f"{text}; {held[0].where} waits: {held[0].waiting_for}"
    return (Wait("Spreading", text),)
