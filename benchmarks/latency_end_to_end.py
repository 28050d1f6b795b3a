"""Part of `latency.py`: from send to receipt, by a consumer in another process.

The sender keeps to its rate whatever happens to the records and stamps each just before it sends
it; the receiver takes the time when it is handed the record. Both read the same machine's clock.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from benchmarks.common import in_turns, median, progress
from benchmarks.latency_figures import Run, report
from benchmarks.latency_job import LINGER_MS, Job
from benchmarks.latency_stage import KAFKA, Side, Stage, take_turn

KEPT = 0.98
"""Of the rate: a sender that reached less is told of."""


def end_to_end(stage: Stage) -> None:
    """A topic of its own for each measurement, so that receivers begin at its beginning."""
    sizes = stage.sizes
    kafka = stage.kafka()
    sides = [stage.ours(), *([] if kafka is None else [kafka])]
    for side in sides:
        progress(f"warming up {side.kind}")
        _turn(side, max(sizes.rates), side.warm_s, sizes.settle_s)
    for rate in sizes.rates:
        turns = {
            side.kind: partial(_turn, side, rate, sizes.seconds, sizes.settle_s) for side in sides
        }
        rounds = in_turns(sizes.rounds, turns)
        for kind, runs in rounds.items():
            reached = median([run.samples[0].events / run.samples[0].took_s for run in runs])
            if reached < KEPT * rate:
                progress(f"{kind} sent {reached:,.0f} records/s, not {rate:,}")
        received = {kind: [_received(run) for run in runs] for kind, runs in rounds.items()}
        name = f"end to end, {rate:,} records/s, linger {LINGER_MS} ms"
        for share, words in ((0.5, "p50"), (0.99, "p99")):
            values = {
                kind: [run.latency_ms(share) for run in runs] for kind, runs in received.items()
            }
            _report(f"{name}, {words}", "ms", values, "ratio ≤ 1")
        busy = {kind: [run.brokers_percent for run in runs] for kind, runs in received.items()}
        _report(f"{name}, CPU of three brokers", "% of a core", busy)


def _turn(side: Side, rate: int, seconds: float, settle_s: float) -> Run:
    """Its first sample is the sender's, its second the receiver's."""
    topic = side.new_topic("end-to-end")
    jobs = [
        Job(
            side=side.kind,
            role=role,
            bootstrap=side.bootstrap,
            topic=topic,
            seconds=seconds,
            settle_s=settle_s,
            rate=rate,
        )
        for role in ("send", "receive")
    ]
    try:
        run = take_turn(side, jobs)
    finally:
        side.delete(topic)
    sent, received = run.samples
    if sent.events != received.events:
        raise SystemExit(f"{topic}: {sent.events} records were sent, {received.events} received")
    return run


def _received(run: Run) -> Run:
    """Latencies are the receiver's. The time is the sender's: the receiver waited before."""
    sent, received = run.samples
    return Run(samples=[replace(received, took_s=sent.took_s)], brokers_s=run.brokers_s)


def _report(name: str, unit: str, values: dict[str, list[float]], goal: str = "") -> None:
    peers = {KAFKA: values["kafka"]} if "kafka" in values else {}
    report(name, unit, values["ours"], peers, {KAFKA: goal})
