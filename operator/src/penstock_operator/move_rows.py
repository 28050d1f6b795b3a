"""What a Cluster's status says of moves: how far they are, who is emptied, what could begin. Pure.

A row that was never needed is not there, so that a new operator does not write every status; None
takes a key away. While brokers do not say what moves, everything stays as it was said last.
"""

from collections.abc import Mapping
from typing import Any

from penstock.client import MoveDescription
from penstock.client.admin.move_model import MoveState
from penstock_operator.model import Object, Observed, Plan
from penstock_operator.move_model import DrainState


def move_rows(observed: Observed, plan: Plan, before: Mapping[str, Any], now: str) -> Object:
    """`plan`, `moves` and `drains`. `now`: RFC 3339."""
    if observed.moves is None:
        return {}
    rows: Object = {}
    running = [one for one in observed.moves.moving.moves if one.target]
    rate = observed.moves.moving.copy_rate
    if running or rate is not None or "moves" in before:
        rows["moves"] = _moves(running)
        if rate is not None or "copyRate" in before.get("moves", {}):
            rows["moves"]["copyRate"] = rate
    if plan.drains or "drains" in before:
        since = {each["broker"]: each["since"] for each in before.get("drains") or ()}
        rows["drains"] = [_drain(one, since.get(one.broker_id, now)) for one in plan.drains]
    if plan.offer is not None or "plan" in before:
        rows["plan"] = _offer(plan)
    return rows


def _moves(running: list[MoveDescription]) -> Object:
    copies = [copy for one in running for copy in one.copies]
    copying = sum(one.state is MoveState.COPYING for one in running)
    left = sum(copy.bytes_left for copy in copies) if copies else None
    return {"running": copying, "queued": len(running) - copying, "bytesLeft": left}


def _drain(one: DrainState, since: str) -> Object:
    row: Object = {
        "broker": one.broker_id,
        "state": one.stage.value,
        "replicas": one.replicas,
        "since": since,
    }
    if one.bytes_left is not None:
        row["bytesLeft"] = one.bytes_left
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
