"""From facts and a wish to a plan: a pure function.

    facts ─▶ layout ─▶ forced · spread · improve ─▶ leaders ─▶ moves, by comparison with the facts

What is forced comes first. Balance then improves what it may; the other wishes move nothing that
they do not demand, and only reorder what they move anyway. A plan has one move per partition, from
the replicas it has to those it ends with, so nothing moves twice.
"""

from collections.abc import Callable
from functools import partial

from penstock.core.balance import forced
from penstock.core.balance.facts import (
    Balance,
    Drain,
    Factor,
    Facts,
    Leaders,
    Replace,
    Spread,
    Wish,
    reason_of,
)
from penstock.core.balance.improve import Improving
from penstock.core.balance.layout import Layout
from penstock.core.balance.leaders import Leading
from penstock.core.balance.plan import BrokerChange, Infeasible, Move, Plan, plan_id
from penstock.core.balance.score import BYTES_PERCENT, Score, even, within
from penstock.core.balance.shortage import named, shortage
from penstock.core.balance.spread import spread
from penstock.core.types import BrokerId


def plan(facts: Facts, wish: Wish) -> Plan | Infeasible:
    """What to move so that the wish is fulfilled; a plan without moves if it is.

    Infeasible if a hard goal forbids any part of it, or if the wish names what does not exist.
    """
    if problem := _problem(facts, wish):
        return Infeasible(problem)
    leaving = _leaving(wish)
    layout = Layout(facts, leaving)
    before = measure(layout)
    present = _figures(layout)
    force = _force(wish, layout)
    if force is not None and force(layout) is not None:
        unlimited = Layout(facts, leaving, unlimited=True)
        wished = wish.replicas if isinstance(wish, Factor) else None
        return Infeasible(shortage(unlimited, force, wished))
    if isinstance(wish, Spread):
        spread(layout, [layout.number[one] for one in _onto(facts, wish)])
    if isinstance(wish, Balance):
        Improving(layout).run()
    Leading(layout, _scope(layout, wish)).run()
    return _plan(layout, wish, before, present)


def _leaving(wish: Wish) -> frozenset[BrokerId]:
    match wish:
        case Drain(brokers):
            return frozenset(brokers)
        case Replace(broker):
            return frozenset({broker})
        case _:
            return frozenset()


def _force(wish: Wish, layout: Layout) -> Callable[[Layout], int | None] | None:
    """What the wish demands, to be done to a layout; it returns a partition that cannot follow."""
    match wish:
        case Drain(brokers):
            return partial(forced.drain, leaving=frozenset(brokers))
        case Replace(broker):
            alone = forced.only_here(layout, broker)
            return partial(forced.leave, partitions=alone, broker=broker)
        case Factor(topic, replicas):
            return partial(forced.change_factor, topic=topic, replicas=replicas)
        case _:
            return None


def _scope(layout: Layout, wish: Wish) -> list[int]:
    """The partitions whose replicas may be put into another order."""
    if isinstance(wish, Balance | Leaders):
        return [at for at, moving in enumerate(layout.moving) if not moving]
    return [
        at
        for at in layout.touched
        if layout.placed[at] not in (list(layout.base[at]), list(layout.present[at]))
    ]


# ---------------------------------------------------------------- wishes that make no sense


def _problem(facts: Facts, wish: Wish) -> str:
    """What is wrong with the wish itself; "" = nothing."""
    known = {broker.id: broker for broker in facts.brokers}
    match wish:
        case Drain(brokers):
            return _unknown(facts, brokers)
        case Replace(broker):
            return _unknown(facts, (broker,)) or _lost(facts, broker)
        case Spread():
            brokers = _onto(facts, wish)
            closed = [one for one in brokers if one in known and not _usable(facts, one)]
            return _unknown(facts, brokers) or (
                f"brokers that are cordoned or not alive cannot take replicas: {_ids(closed)}; "
                "uncordon or start them first"
                if closed
                else ""
            )
        case Factor(topic, replicas):
            if all(one.partition.topic != topic for one in facts.partitions):
                return f"there is no topic {topic}"
            if replicas < 1:
                return f"a topic needs 1 replica or more, not {replicas}"
    return ""


def _onto(facts: Facts, wish: Spread) -> tuple[BrokerId, ...]:
    fresh = (one.id for one in facts.brokers if one.fresh and _usable(facts, one.id))
    return wish.brokers or tuple(sorted(fresh))


def _usable(facts: Facts, broker: BrokerId) -> bool:
    return any(one.id == broker and one.alive and not one.cordoned for one in facts.brokers)


def _unknown(facts: Facts, brokers: tuple[BrokerId, ...]) -> str:
    known = {broker.id for broker in facts.brokers}
    unknown = [one for one in brokers if one not in known]
    if not unknown:
        return ""
    return f"there is no broker {_ids(unknown)}; there are {_ids(sorted(known)) or 'none'}"


def _lost(facts: Facts, broker: BrokerId) -> str:
    """Partitions that could be copied from nowhere, because their only holder does not serve."""
    layout = Layout(facts)
    at = layout.number[broker]
    alone = [
        layout.facts[one]
        for one in forced.only_here(layout, broker)
        if not layout.brokers[at].alive or broker not in layout.facts[one].isr
    ]
    if not alone:
        return ""
    return (
        f"{named([str(one.partition) for one in alone])}: no live replica is in sync, and broker "
        f"{broker} cannot supply one; start it, or accept the loss of these partitions"
    )


def _ids(brokers: list[BrokerId]) -> str:
    return ", ".join(str(one) for one in brokers)


# ---------------------------------------------------------------- what came of it


def measure(layout: Layout) -> Score:
    """The score of a layout as it is."""
    members = [at for at, is_open in enumerate(layout.open) if is_open]
    parts = len(members)

    def of(values: list[int], percent: int = 0) -> int:
        own = [values[at] for at in members]
        band = within(sum(own), parts, percent) if percent else even(sum(own), parts)
        return band.total(own)

    leading = Leading(layout, [])
    return Score(
        racks=sum(layout.rack_excess(one) for one in range(len(layout.facts))),
        replicas=of(layout.count),
        held_bytes=of(layout.bytes, BYTES_PERCENT),
        topics=sum(of(counts) for counts in layout.topic_count),
        leaders=leading.excess(),
        inflow=leading.inflow_excess(),
    )


def _figures(layout: Layout) -> list[tuple[int, int, int]]:
    """Replicas, bytes, preferred leaderships of every broker."""
    leaders = Leading(layout, []).count
    return list(zip(layout.count, layout.bytes, leaders, strict=True))


def _plan(layout: Layout, wish: Wish, before: Score, present: list[tuple[int, int, int]]) -> Plan:
    changed = [at for at in layout.touched if layout.placed[at] != list(layout.base[at])]
    reordered = {at for at in changed if set(layout.placed[at]) == set(layout.base[at])}
    order = [at for at in changed if at not in reordered] + sorted(reordered)
    moves = tuple(_move(layout, at) for at in order)
    into, out = _traffic(layout, changed)
    busiest = max([*into, *out], default=0)
    rate = layout.copy_rate
    reason = reason_of(wish)
    return Plan(
        id=plan_id(reason, moves),
        reason=reason,
        moves=moves,
        brokers=tuple(
            BrokerChange(
                broker=broker.id,
                in_bytes=into[at],
                out_bytes=out[at],
                replicas=(was[0], now[0]),
                held_bytes=(was[1], now[1]),
                leaders=(was[2], now[2]),
            )
            for at, (broker, was, now) in enumerate(
                zip(layout.brokers, present, _figures(layout), strict=True)
            )
        ),
        leaders_moved=sum(layout.placed[at][0] != layout.base[at][0] for at in changed),
        minutes=-(-busiest // (rate * 60)) if rate else None,
        before=before,
        after=measure(layout),
    )


def _move(layout: Layout, partition: int) -> Move:
    facts = layout.facts[partition]
    new = [at for at in layout.placed[partition] if at not in layout.has_data[partition]]
    return Move(
        partition=facts.partition,
        expected=facts.replicas,
        target=tuple(layout.brokers[at].id for at in layout.placed[partition]),
        copied_bytes=layout.size[partition] * len(new) if facts.size_bytes is not None else 0,
    )


def _traffic(layout: Layout, changed: list[int]) -> tuple[list[int], list[int]]:
    """Bytes that every broker copies in, and out as the leader."""
    into, out = [0] * len(layout.brokers), [0] * len(layout.brokers)
    for partition in changed:
        facts = layout.facts[partition]
        size = facts.size_bytes or 0
        leader = layout.number.get(facts.leader, layout.present[partition][0])
        for at in layout.placed[partition]:
            if at not in layout.has_data[partition]:
                into[at] += size
                out[leader] += size
    return into, out
