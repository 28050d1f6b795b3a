"""What a Cluster's status says of moves: how far they are, who is emptied, what could begin. Pure.

A row that was never needed is not there, so that a new operator does not write every status; None
takes a key away. While brokers do not say what moves, everything stays as it was said last.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from penstock.client import Cordon, MoveDescription
from penstock.client.admin.move_model import MoveState
from penstock.client.admin.receiving import receiving, seconds_left
from penstock_operator.model import Object, Observed, Plan
from penstock_operator.move_model import DrainState
from penstock_operator.progress import end_of, figures


def move_rows(observed: Observed, plan: Plan, before: Mapping[str, Any], now: str) -> Object:
    """`plan`, `moves` and `drains`. `now`: RFC 3339."""
    if observed.moves is None:
        return {}
    rows: Object = {}
    running = [one for one in observed.moves.moving.moves if one.target]
    rate = observed.moves.moving.copy_rate
    if running or rate is not None or "moves" in before:
        rows["moves"] = _moves(running, now)
        if rate is not None or "copyRate" in before.get("moves", {}):
            rows["moves"]["copyRate"] = rate
    if plan.drains or "drains" in before:
        known = {each["broker"]: each for each in before.get("drains") or ()}
        rows["drains"] = [_drain(one, known.get(one.broker_id, {}), now) for one in plan.drains]
    if plan.offer is not None or "plan" in before:
        rows["plan"] = _offer(plan)
    return rows


_PLACEMENT: Final = ("cordoned", "directoryId", "version", "bytes", "damaged")


def placement_rows(
    observed: Observed, plan: Plan, before: Mapping[int, Mapping[str, Any]]
) -> dict[int, Object]:
    """What the rows of brokers with a pod say of them as places for replicas. `before`: their rows
    as they are now."""
    moves = observed.moves
    if moves is None:
        return {
            broker_id: {key: row[key] for key in _PLACEMENT if key in row}
            for broker_id, row in before.items()
        }
    # Sizes change all the time: at rest they would be written all the time.
    is_asked = plan.drains or any(one.target for one in moves.moving.moves)
    held = moves.seen.held_bytes() if moves.seen is not None and is_asked else None
    damaged = Counter(broker_id for one in moves.moving.moves for broker_id in one.damaged)
    rows: dict[int, Object] = {}
    for broker_id in observed.pods:
        row = rows[broker_id] = {}
        placed = moves.broker(broker_id)
        if placed is not None:
            if placed.cordon is not None:
                row["cordoned"] = _cordon(placed.cordon)
            row["directoryId"] = placed.directory_id
            if version := placed.software_version or before.get(broker_id, {}).get("version"):
                row["version"] = version
        if held is not None:
            row["bytes"] = held[broker_id]
        if damaged[broker_id]:
            row["damaged"] = damaged[broker_id]
    return rows


def _cordon(cordon: Cordon) -> Object:
    return {
        "placement": cordon.placement,
        "leadership": cordon.leadership,
        "by": cordon.by,
        "why": cordon.why,
    }


def _moves(running: list[MoveDescription], now: str) -> Object:
    """Bytes of queued moves are not in it: they are known once copying has begun."""
    copies = [copy for one in running for copy in one.copies]
    copying = sum(one.state is MoveState.COPYING for one in running)
    left = sum(copy.bytes_left for copy in copies) if copies else None
    rate = sum(copy.bytes_per_second for copy in copies)
    seconds = seconds_left(receiving(running, {}).values())
    queued = len(running) - copying
    counted = ((copying, "copying"), (queued, "queued"))
    text = ", ".join(f"{count} {what}" for count, what in counted if count)
    return {
        "running": copying,
        "queued": queued,
        "bytesLeft": left,
        "bytesPerSecond": rate if copies else None,
        "eta": end_of(seconds, now),
        "summary": f"{text}{figures(left, rate, ' left', seconds=seconds)}" or None,
    }


def _drain(one: DrainState, before: Mapping[str, Any], now: str) -> Object:
    """`before`: its row as it is now; empty: it has none."""
    row: Object = {
        "broker": one.broker_id,
        "state": one.stage.value,
        "replicas": one.replicas,
        "since": before.get("since", now),
    }
    if one.bytes_left is not None:
        row["bytesLeft"] = one.bytes_left
        row["bytesTotal"] = max(one.bytes_left, before.get("bytesTotal", 0))
        if (eta := end_of(one.seconds_left, now)) is not None:
            row["eta"] = eta
    if one.waiting_for:
        row["waitingFor"] = one.waiting_for
    return row


def _offer(plan: Plan) -> Object:
    made = plan.offer
    if made is None:
        return {"id": "", "moves": 0, "bytes": 0, "minutes": None, "text": ""}
    return {
        "id": made.plan,
        "moves": made.moves,
        "bytes": made.copied_bytes,
        "minutes": made.minutes,
        "text": made.text,
    }
