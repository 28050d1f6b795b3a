"""What attacks cost those who are attacked: a secure cluster, in peace and not, in turns.

Three brokers, replication 3, on one machine, as `penstock local up --secure` starts them; attackers
run in processes of their own, and have tokens. `tests/security` shows that they are refused. Here:

    rules    how long a stream goes on whose rule is removed
    bombs    how long a cheap call waits while batches are opened that grow ten thousand times
    streams  idle streams and half-open handshakes: what one host can hold, and probes meanwhile
    quota    neighbours of somebody who sends a hundred times their quota

Example: python -m benchmarks.attacks --quick --only rules
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.attack_rules import Ruled, fed, produce_stream, subscription
from benchmarks.attack_stage import (
    ADA,
    MALLORY,
    PROBE_S,
    Asking,
    Stage,
    metadata_of,
    principal,
    probe,
)
from benchmarks.attackers import Attack, Counts, attacked
from benchmarks.common import (
    figure,
    figure_of_rounds,
    in_turns,
    median,
    percentile,
    run_parts,
)
from benchmarks.failover import await_condition
from benchmarks.latency_figures import Run
from benchmarks.latency_job import PARTITIONS
from benchmarks.transaction_stage import leader_of
from penstock.client import AsyncAdmin, AsyncProducer
from penstock.core.quotas import Limit, QuotaRule

STOP_MS: Final = 2_000.0
HEARTBEAT_MS: Final = 300.0
"""How often a broker sends a heartbeat."""
ASK_EVERY_S: Final = 0.01
PROBE_EVERY_S: Final = 0.1
PARTS: Final = 1_000
QUOTA_BYTES: Final = 100_000
TIMES: Final = 100
NEIGHBOURS: Final = 6
PEACE: Final = "in peace"
ATTACKED: Final = "attacked"
LEFT: Final = 20
"""Descriptors of a broker that come and go."""
SESSION_MS: Final = 1_500.0
"""A broker that sends no heartbeat for as long is dead to the controller."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What others saw: clients that append, and the longest answers to probes and cheap calls."""

    run: Run
    probe_ms: float
    call_ms: float


# ---------------------------------------------------------------- 13: a rule goes


def rules(stage: Stage) -> None:
    """A user's streams, to each leader in turn, whose rule an administrator removes."""
    found = asyncio.run(_stop_ms(stage, stage.topic("ruled")))
    for name, took_ms in found.items():
        words = f"{name} goes on after its rule is removed"
        for what, value in (("median", median(took_ms)), ("worst", max(took_ms))):
            figure(f"{words}, {what}", value, "ms", "limit", STOP_MS, goal=f"≤ {STOP_MS:g} ms")


async def _stop_ms(stage: Stage, topic: str) -> dict[str, list[float]]:
    bootstrap, settings = stage.cluster.bootstrap, stage.settings
    streams = {"Subscribe": subscription, "ProduceStream": produce_stream}
    found: dict[str, list[float]] = {name: [] for name in streams}
    async with (
        AsyncAdmin(bootstrap, **settings) as admin,
        AsyncProducer(bootstrap, linger_ms=0, **settings) as producer,
        fed(producer, topic, PARTITIONS),
    ):
        ruled = Ruled(admin, topic, principal(ADA), stage.user(ADA))
        for turn in range(stage.tries):
            for name, stream in streams.items():
                stopped_s = await ruled.stops_after_s(stream, turn % PARTITIONS)
                found[name].append(1e3 * stopped_s)
    return found


# ---------------------------------------------------------------- 19: bombs


def bombs(stage: Stage) -> None:
    """Somebody who may write a compacted topic sends one request of bombs after the other. The loop
    that answers calls also sends heartbeats: none is later than the longest answer."""
    topic = stage.topic("bombs", MALLORY, configs={"cleanup.policy": "compact"})
    address = stage.cluster.address(leader_of(stage.admin, topic))
    counted = Counts()

    def ask() -> list[float]:
        """All brokers."""
        with ExitStack() as connections:
            asking = []
            for broker in stage.cluster.broker_ids:
                asked = stage.cluster.address(broker)
                metadata = connections.enter_context(metadata_of(asked, stage.settings))
                asking.append(Asking(asked, metadata, ASK_EVERY_S))
            time.sleep(stage.seconds)
            return [each for one in asking for each in one.took_ms()]

    def under_attack() -> list[float]:
        attack = Attack(
            kind="bombs",
            address=address,
            settings=stage.user(MALLORY),
            topic=topic,
            count=PARTS,
        )
        with attacked(attack) as counts:
            took_ms = ask()
        counted.update(counts)
        return took_ms

    runs = in_turns(stage.rounds, {PEACE: ask, ATTACKED: under_attack})
    words = "a cheap call while bombs are opened"
    for what, of in (("p99", partial(percentile, share=0.99)), ("longest", max)):
        found = {name: [of(each) for each in those] for name, those in runs.items()}
        figure_of_rounds(f"{words}, {what}", found[ATTACKED], "ms", PEACE, found[PEACE])
    figure(
        f"{words}, longest of all rounds", max(map(max, runs[ATTACKED])), "ms",
        "a heartbeat's interval", HEARTBEAT_MS, goal=f"< {HEARTBEAT_MS:g} ms",
    )  # fmt: skip
    sent = counted["refused"] + counted["taken"]
    figure("bombs refused", counted["refused"], "", "sent", sent)


# ---------------------------------------------------------------- 20: streams and handshakes


def streams(stage: Stage) -> None:
    """One host opens streams at a broker that it does not use, or connections without a handshake.
    A client whose records go to all brokers, and the kubelet, are others."""
    topic = stage.topic("idle", ADA)
    broker = leader_of(stage.admin, topic)
    pid, address = stage.cluster.broker_pid(broker), stage.cluster.address(broker)
    health = stage.cluster.health_address(broker)
    held: dict[str, Counts] = {}

    def seen_by_others(attack: Attack | None = None) -> Seen:
        """From before the attack begins until what it held is given back."""
        before = _descriptors(pid)
        with metadata_of(address, stage.settings) as metadata:
            calls = Asking(address, metadata, ASK_EVERY_S)
            probes = Asking(health, partial(probe, health), PROBE_EVERY_S)
            if attack is None:
                run = stage.append(topic, PARTITIONS)
            else:
                with attacked(attack) as held[attack.kind]:
                    held[attack.kind]["connections"] = _descriptors(pid) - before
                    run = stage.append(topic, PARTITIONS)
                await_condition("all are gone", lambda: _descriptors(pid) <= before + LEFT)
                time.sleep(stage.seconds)
            return Seen(run, max(probes.took_ms()), max(calls.took_ms()))

    settings = stage.user(MALLORY)
    turns = {PEACE: seen_by_others}
    for kind in ("streams", "handshakes"):
        attack = Attack(kind=kind, address=address, settings=settings, count=stage.held)
        turns[kind] = partial(seen_by_others, attack)
    runs = in_turns(stage.rounds // 2 or 1, turns)
    idle, half_open = held["streams"]["held"], held["handshakes"]["connections"]
    tried = held["handshakes"]["tried"]
    figure("idle streams that one host holds", idle, "", "tried", stage.held)
    figure("half-open handshakes that one host holds", half_open, "", "tried", tried)
    _beside_peace("idle streams", runs[PEACE], runs["streams"])
    _beside_peace("half-open handshakes", runs[PEACE], runs["handshakes"])


def _beside_peace(words: str, peace: list[Seen], attack: list[Seen]) -> None:
    """Figures of an attack."""
    rows: tuple[tuple[str, float, Callable[[Seen], float]], ...] = (
        ("longest probe", 1e3 * PROBE_S, lambda seen: seen.probe_ms),
        ("longest of cheap calls", SESSION_MS, lambda seen: seen.call_ms),
        ("small appends of others, p50", 0.0, lambda seen: seen.run.latency_ms(0.5)),
        ("small appends of others, p99", 0.0, lambda seen: seen.run.latency_ms(0.99)),
    )
    for what, goal_ms, of in rows:
        ours, theirs = [of(each) for each in attack], [of(each) for each in peace]
        goal = f"< {goal_ms:g} ms" if goal_ms else ""
        figure_of_rounds(f"{words}, {what}", ours, "ms", PEACE, theirs, goal=goal)


def _descriptors(pid: int | None) -> int:
    """How many are open in a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


# ---------------------------------------------------------------- 21: far beyond a quota


def quota(stage: Stage) -> None:
    """Clients that wait for each acknowledgement, while somebody sends a hundred times their quota
    to one of the three brokers, whatever they are answered."""
    topic, flooded = stage.topic("neighbours", ADA), stage.topic("flood", MALLORY)
    rule = QuotaRule((principal(MALLORY),), {Limit.PRODUCE: QUOTA_BYTES})
    stage.admin.alter_quotas([rule])
    address = stage.cluster.address(leader_of(stage.admin, flooded))
    counted: list[Counts] = []

    def turn() -> Run:
        return stage.append(topic, NEIGHBOURS)

    def under_attack() -> Run:
        attack = Attack(
            kind="flood",
            address=address,
            settings=stage.user(MALLORY),
            topic=flooded,
            bytes_per_s=TIMES * QUOTA_BYTES,
        )
        with attacked(attack) as counts:
            run = turn()
        counted.append(counts)
        return run

    runs = in_turns(stage.rounds, {PEACE: turn, ATTACKED: under_attack})
    words = f"{NEIGHBOURS} neighbours of somebody at {TIMES} times a quota"
    for what, unit, of, goal in (
        ("acknowledged", "records/s", _per_s, "ratio ≥ 0.9"),
        ("p50", "ms", _p50, ""),
        ("p99", "ms", _p99, "ratio ≤ 1.1"),
    ):
        found = {name: [of(run) for run in those] for name, those in runs.items()}
        figure_of_rounds(f"{words}, {what}", found[ATTACKED], unit, PEACE, found[PEACE], goal=goal)
    offered = [1e3 * each["offered"] / each["milliseconds"] for each in counted]
    figure("sent by somebody with a quota", median(offered), "B/s", "quota", QUOTA_BYTES)
    spent = [100 * each["cpu_milliseconds"] / each["milliseconds"] for each in counted]
    figure(
        "processor time of the attacker itself, on the same machine", median(spent), "% of a core"
    )
    requests = sum(each["taken"] + each["throttled"] + each["failed"] for each in counted)
    throttled = sum(each["throttled"] for each in counted)
    figure("requests throttled of somebody with a quota", throttled, "", "sent", requests)


def _per_s(run: Run) -> float:
    return run.per_s


def _p50(run: Run) -> float:
    return run.latency_ms(0.5)


def _p99(run: Run) -> float:
    return run.latency_ms(0.99)


PARTS_OF: Final[dict[str, Callable[[Stage], None]]] = {
    "rules": rules,
    "bombs": bombs,
    "streams": streams,
    "quota": quota,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ", ".join(PARTS_OF)
    parser.add_argument("--only", action="append", choices=PARTS_OF, metavar="PART", help=names)
    parser.add_argument("--quick", action="store_true", help="small: shows only that it works")
    args = parser.parse_args()
    wanted = {name: part for name, part in PARTS_OF.items() if not args.only or name in args.only}
    with ExitStack() as running:
        stage = Stage(running, quick=args.quick)
        return run_parts({name: partial(measure, stage) for name, measure in wanted.items()})


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
