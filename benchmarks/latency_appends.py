"""Parts of `latency.py`: records that are sent alone, one waited for or many under way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from benchmarks.common import figure, in_turns, median, progress
from benchmarks.latency_figures import Run, report
from benchmarks.latency_job import Job
from benchmarks.latency_stage import BARE, KAFKA, Side, Stage, take_turn

APPEND_MS = 2.0
"""What the three brokers' processor time per lone append is to stay below."""
RATE_GOALS = {64: "ratio ≥ 1.5"}
"""Acknowledgements per second beside Kafka's, by clients; "ratio ≥ 1" for all others."""
Rounds = Mapping[Side, list[Run]]


def lone(stage: Stage) -> None:
    """Clients that each wait for the acknowledgement of a record before they send the next."""
    sizes = stage.sizes
    found = (stage.kafka(), stage.nats())
    sides = [stage.ours(), *(side for side in found if side is not None), stage.bare()]
    topics = {side: side.new_topic("lone") for side in sides}
    run = partial(_append_turn, stage, topics)
    for side in sides:
        progress(f"warming up {side.kind}")
        run(side, max(sizes.clients), seconds=side.warm_s)
    for clients in sizes.clients:
        rounds = in_turns(sizes.rounds, {side: partial(run, side, clients) for side in sides})
        _report_lone(f"{clients} client{'s' * (clients > 1)}", clients, rounds)
    clients = max(sizes.clients)
    sharing = [side for side in sides if side.kind in ("ours", "kafka")]
    turns = {side: partial(run, side, clients, shared=True) for side in sharing}
    _report_shared(f"{clients} clients that share producers", in_turns(sizes.rounds, turns))


def _append_turn(
    stage: Stage,
    topics: Mapping[Side, str],
    side: Side,
    clients: int,
    *,
    seconds: float = 0.0,
    shared: bool = False,
) -> Run:
    """In two processes if there are several clients: one alone would end at one core."""
    numbers = tuple(range(clients))
    halves = [numbers[: clients // 2], numbers[clients // 2 :]]
    jobs = [
        Job(
            side=side.kind,
            role="append",
            bootstrap=side.bootstrap,
            topic=topics[side],
            clients=half,
            shared=shared,
            seconds=seconds or stage.sizes.seconds,
            settle_s=stage.sizes.settle_s,
        )
        for half in halves
        if half
    ]
    return take_turn(side, jobs)


def _report_lone(words: str, clients: int, rounds: Rounds) -> None:
    name = f"lone append, {words}"
    quick = {KAFKA: "ratio ≤ 1", BARE: "ratio ≤ 2.5"}
    rate = {KAFKA: RATE_GOALS.get(clients, "ratio ≥ 1")}
    _beside(f"{name}, acknowledged", "acks/s", rounds, lambda run: run.per_s, rate)
    _beside(f"{name}, p50", "ms", rounds, lambda run: run.latency_ms(0.5), quick)
    _beside(f"{name}, p99", "ms", rounds, lambda run: run.latency_ms(0.99))
    cost = f"{name}, CPU of three brokers per ack"
    ours = median([run.brokers_ms for run in _ours(rounds)])
    figure(cost, ours, "ms", "limit", APPEND_MS, goal=f"≤ {APPEND_MS:g} ms")
    _beside(cost, "ms", rounds, lambda run: run.brokers_ms)
    _beside(f"{name}, CPU of the clients per ack", "ms", rounds, lambda run: run.clients_ms)


def _report_shared(words: str, rounds: Rounds) -> None:
    name = f"lone append, {words}"
    _beside(f"{name}, acknowledged", "acks/s", rounds, lambda run: run.per_s)
    _beside(f"{name}, p50", "ms", rounds, lambda run: run.latency_ms(0.5))
    _beside(f"{name}, CPU of three brokers per ack", "ms", rounds, lambda run: run.brokers_ms)


def pipelined(stage: Stage) -> None:
    """One client, one record per request, as many requests under way as its defaults allow."""
    sizes = stage.sizes
    kafka = stage.kafka()
    sides = [stage.ours(), *([] if kafka is None else [kafka])]
    topics = {side: side.new_topic("pipelined", 1) for side in sides}

    def run(side: Side, *, settle_s: float) -> Run:
        job = Job(
            side=side.kind,
            role="pipeline",
            bootstrap=side.bootstrap,
            topic=topics[side],
            settle_s=settle_s,
            records=sizes.pipelined,
        )
        return take_turn(side, [job])

    for side in sides:
        progress(f"warming up {side.kind}")
        run(side, settle_s=side.warm_s)
    turns = {side: partial(run, side, settle_s=sizes.settle_s) for side in sides}
    rounds = in_turns(sizes.rounds, turns)
    name = "pipelined, one record per request, one client"
    _beside(name, "records/s", rounds, lambda run: run.per_s)
    cost = "pipelined, CPU of three brokers per record"
    _beside(cost, "ms", rounds, lambda run: run.brokers_ms)


def _ours(rounds: Rounds) -> list[Run]:
    return next(runs for side, runs in rounds.items() if side.kind == "ours")


def _beside(
    name: str,
    unit: str,
    rounds: Rounds,
    value: Callable[[Run], float],
    goals: Mapping[str, str] | None = None,
) -> None:
    peers = {
        side.label: [value(run) for run in runs]
        for side, runs in rounds.items()
        if side.kind != "ours"
    }
    report(name, unit, [value(run) for run in _ours(rounds)], peers, goals)
