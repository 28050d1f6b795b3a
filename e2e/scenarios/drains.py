"""Three brokers become five and three again while everything that decides it fails in turn.

    scale to 5 ─▶ shares ─▶ scale to 3 ─▶ drains: Draining ─▶ Deleting ─▶ Proving ─▶ gone
                                             ▲ topics made each second, operators and controllers
                                             │ killed, the API server away, the throttle changed

A drain is slow here because `spec.balance.throttle` is low: so there is a middle to fail in.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from e2e.harness.kubectl import Manifest
from e2e.harness.penstock import CLUSTERS, condition
from e2e.harness.process import CommandError, E2EError, wait_until
from e2e.harness.scenario import Stage, scenario
from e2e.harness.workload import Load, Verdict, Workload
from e2e.scenarios.control import kill_controllers, kill_operators, steal_lease
from e2e.scenarios.operations import (
    MISSING_IMAGE,
    ROLL_S,
    names_missing_image,
    restore,
    rolled,
    set_image,
    uids,
)

MIB: Final = 1024 * 1024
PREFILLED_MIB: Final = int(os.environ.get("PENSTOCK_E2E_DRAIN_MIB", "384"))
"""What a topic of three replicas holds before it moves."""
LARGE_MIB: Final = int(os.environ.get("PENSTOCK_E2E_LARGE_MIB", "4768"))
"""The same where it matters that it is much: 5 GB, which three brokers keep as 15 GB."""
RECORD_BYTES: Final = 10_000
SLOW: Final = "2Mi"
AWAY_S: Final = 180.0
SHARE_S: Final = 600.0
DRAINED_S: Final = 900.0
FOLLOWS_S: Final = 5.0
GAP_S: Final = 1.0
STEADY: Final = "8Mi"
"""5 GB leave two brokers in five minutes: an end is told in whole minutes."""
FORETOLD_S: Final = 60.0
FORETOLD_PERCENT: Final = 30.0


@scenario("Five brokers become three while operators, controllers and the API server fail")
def drained_through_faults(stage: Stage) -> None:
    """Each state of the drains kills the operators; nothing is skipped, and what left is empty."""
    penstock, load = stage.penstock, stage.load()
    with stage.workload(load) as running, _prefilled(stage) as filled:
        running.started()
        shares = _to_five(stage)
        stage.expect(min(shares[3], shares[4]) >= sum(shares.values()) // 5 - 1, f"{shares}")
        running.goes_on()
        began = time.monotonic()
        with _throttled(stage, SLOW):
            _scale(stage, 3)
            seen: list[str] = []
            _drains(stage, _is_draining)
            _rate_is_near(stage, 2 * MIB)
            stage.say(condition(_cluster(stage), "Reconciling")["message"])
            made = _topics_each_second(stage, 3)
            kill_operators(stage)
            running.goes_on(20)
            _api_server_away(stage)
            running.goes_on(20)
            kill_controllers(stage)
            running.goes_on(20)
            penstock.wait_ready(240.0)
        _rate_follows(stage)
        _until_gone(stage, seen)
        stage.measure("five brokers became three, with all that", time.monotonic() - began)
        stage.say(f"states that were seen: {', '.join(seen)}")
        for topic in (load.topic, filled, *made):
            for one in penstock.partitions(topic):
                stage.expect(not {3, 4} & {*one.replicas}, f"{topic}: replicas {one.replicas}")
                stage.expect(len(one.replicas) == 3, f"{topic}: replicas {one.replicas}")
        for topic in made:
            penstock.cli("topic", "delete", topic, "--yes")
        running.goes_on()
        _no_error(stage, load, running.finish())
    penstock.wait_settled(240.0)


@scenario("A scale-down is taken back when half has moved")
def scale_down_taken_back(stage: Stage) -> None:
    """The brokers are used again, no pod restarts, and no copy is left over."""
    penstock, load = stage.penstock, stage.load()
    with _five_brokers(stage, load) as running:
        before = uids(stage)
        with _throttled(stage, SLOW):
            _scale(stage, 3)
            whole = _drains(stage, lambda rows: _replicas(rows) > 0)
            half = _replicas(whole) / 2
            _drains(stage, lambda rows: 0 < _replicas(rows) <= half)
            running.goes_on(20)
            _scale(stage, 5)
            began = time.monotonic()
            wait_until("no broker is drained", lambda: not _rows(_cluster(stage)), 120.0)
            stage.measure("the drain is taken back", time.monotonic() - began)
        penstock.wait_settled(SHARE_S)
        stage.expect(uids(stage) == before, "a broker was restarted")
        cordoned = [each for each in _brokers(stage) if each.get("cordoned")]
        stage.expect(not cordoned, f"still cordoned: {cordoned}")
        moving = json.loads(penstock.cli("partitions", "status", "-o", "json"))
        stage.expect(not moving.get("moves"), f"still moving: {moving}")
        running.goes_on()
        _scale(stage, 3)
        _until_gone(stage, [])
        _no_error(stage, load, running.finish())
    penstock.wait_settled(240.0)


@scenario("The operators' Lease is stolen again and again during a drain")
def lease_stolen_in_a_drain(stage: Stage) -> None:
    """Whoever was active finds its epoch old; there is one drain all the while."""
    penstock, load = stage.penstock, stage.load()
    with _five_brokers(stage, load) as running:
        with _throttled(stage, SLOW):
            _scale(stage, 3)
            since = {n: row["since"] for n, row in _drains(stage, lambda r: {*r} == {3, 4}).items()}
            for _ in range(5):
                steal_lease(penstock.operator)
                running.goes_on(20)
            now = {n: row["since"] for n, row in _drains(stage, bool).items()}
            for broker, when in now.items():
                stage.expect(
                    since[broker] == when, f"broker {broker} was drained a second time, at {when}"
                )
        _until_gone(stage, [])
        _no_error(stage, load, running.finish())
    penstock.wait_settled(240.0)


@scenario("Brokers restart in a drain, and the roll's image is missing: it stops, copies go on")
def rolled_in_a_drain(stage: Stage) -> None:
    """No broker is touched while the image is missing; with another one, both end."""
    penstock, load = stage.penstock, stage.load()
    with _five_brokers(stage, load) as running:
        before = uids(stage)
        with _throttled(stage, SLOW):
            _scale(stage, 3)
            _drains(stage, _is_draining)
            spec = {"image": MISSING_IMAGE, "config": {"cache.bytes": 40_000_000}}
            penstock.streams.patch(CLUSTERS, penstock.cluster, {"spec": spec})
            wait_until("the missing image is named", lambda: names_missing_image(stage), 120.0)
            left = _replicas(_rows(_cluster(stage)))
            stage.expect(left > 0, "nothing was left to move when the roll stopped")
            _drains(stage, lambda rows: _replicas(rows) < left)
            stage.expect(names_missing_image(stage), "the image is no longer named")
            stage.expect(uids(stage) == before, "a broker was restarted")
            running.goes_on()
            set_image(stage, None)
        began = time.monotonic()
        _until_gone(stage, [])
        stayed = {penstock.pod(broker): before[penstock.pod(broker)] for broker in range(3)}
        wait_until("brokers restarted", lambda: rolled(stage, stayed), ROLL_S)
        stage.measure("drained and rolled", time.monotonic() - began)
        running.goes_on()
        _no_error(stage, load, running.finish())
    restore(stage, {"spec": {"config": {"cache.bytes": None}}})


@scenario("Three brokers become five and three with 5 GB, and it takes as long as they say")
def drained_as_foretold(stage: Stage) -> None:
    """What the Cluster says one minute after a drain began is when all is copied. Both brokers
    leave after they have proven that they are empty."""
    penstock, load = stage.penstock, stage.load()
    with stage.workload(load) as running, _prefilled(stage, LARGE_MIB) as filled:
        running.started()
        shares = _to_five(stage)
        stage.expect(min(shares[3], shares[4]) >= sum(shares.values()) // 5 - 1, f"{shares}")
        running.goes_on()
        with _throttled(stage, STEADY):
            _scale(stage, 3)
            looks = _looks(stage)
        _expect_foretold(stage, looks)
        for broker in (3, 4):
            states = [rows[broker]["state"] for _, rows in looks if broker in rows]
            seen = [*dict.fromkeys(states)]
            stage.say(f"broker {broker}: {', '.join(seen)}")
            stage.expect("Proving" in seen, f"broker {broker} left without a proof: {seen}")
        for topic in (load.topic, filled):
            for one in penstock.partitions(topic):
                stage.expect({*one.replicas} == {0, 1, 2}, f"{topic}: replicas {one.replicas}")
        running.goes_on()
        _no_error(stage, load, running.finish())
    penstock.wait_settled(240.0)


# ---------------------------------------------------------------------- what is done


@contextmanager
def _prefilled(stage: Stage, mib: int = PREFILLED_MIB) -> Iterator[str]:
    """A topic whose replicas take a while to move."""
    with stage.topic("-filled", partitions=12) as topic:
        records, began = mib * MIB // RECORD_BYTES, time.monotonic()
        stage.penstock.exec(
            "penstock", "perf", "produce", topic, f"--records={records}",
            f"--record-bytes={RECORD_BYTES}", timeout_s=900.0,
        )  # fmt: skip
        stage.say(f"{mib} MiB written in {time.monotonic() - began:.0f} s")
        yield topic


@contextmanager
def _five_brokers(stage: Stage, load: Load) -> Iterator[Workload]:
    """The load, while all five have their share of it and of what takes a while to move."""
    with stage.workload(load) as running, _prefilled(stage):
        running.started()
        _to_five(stage)
        yield running


def _scale(stage: Stage, brokers: int) -> None:
    penstock = stage.penstock
    penstock.streams.call("scale", f"{CLUSTERS}/{penstock.cluster}", f"--replicas={brokers}")


def _to_five(stage: Stage) -> dict[int, int]:
    """Replicas by broker, once all have their share."""
    began = time.monotonic()
    _scale(stage, 5)
    stage.penstock.wait_brokers(5, 240.0)
    stage.penstock.wait_settled(SHARE_S)
    stage.measure("two more brokers have their share", time.monotonic() - began)
    return {each["id"]: each["replicas"] for each in _brokers(stage)}


@contextmanager
def _throttled(stage: Stage, rate: str) -> Iterator[None]:
    """Copies are that slow while the block runs; afterwards as fast as they can."""
    streams, cluster = stage.penstock.streams, stage.penstock.cluster

    def to(throttle: str | None) -> None:
        balance = {"throttle": throttle} if throttle else None
        streams.patch(CLUSTERS, cluster, {"spec": {"balance": balance}})

    to(rate)
    try:
        yield
    except BaseException:
        to(None)
        raise
    to("none")


def _topics_each_second(stage: Stage, count: int) -> list[str]:
    """Made while brokers 3 and 4 are drained. None of their replicas may come there."""
    names = [f"{stage.load().topic}-made-{index}" for index in range(count)]
    for name in names:
        stage.penstock.cli("topic", "create", name, "--partitions=6", "--replicas=3")
        for one in stage.penstock.partitions(name):
            stage.expect(not {3, 4} & {*one.replicas}, f"{name} is on {one.replicas}")
    return names


def _api_server_away(stage: Stage) -> None:
    """Copies go on, nothing switches: each broker has the replicas afterwards that it had."""
    before = _rows(_cluster(stage))
    stage.expect(_replicas(before) > 0, f"nothing is left to move: {before}")
    with stage.api_server.away("hang"):
        until = time.monotonic() + AWAY_S
        wait_until("the outage is over", lambda: time.monotonic() > until, AWAY_S + 60.0)
    stage.say(
        f"replicas to move: {_replicas(before)} before, {_replicas(_rows(_cluster(stage)))} after"
    )
    stage.expect({*_rows(_cluster(stage))} == {3, 4}, "a broker was forgotten in the outage")


def _until_gone(stage: Stage, seen: list[str]) -> None:
    """Three brokers. Each new state of a drain kills the operators, once."""

    def gone() -> bool:
        for row in _rows(_cluster(stage)).values():
            if row["state"] not in seen:
                seen.append(row["state"])
                kill_operators(stage)
        return len(stage.penstock.broker_pods()) == 3

    wait_until("three brokers", gone, DRAINED_S)


# ---------------------------------------------------------------------- what is seen


def _cluster(stage: Stage) -> Manifest:
    return stage.penstock.streams.get(CLUSTERS, stage.penstock.cluster)


def _brokers(stage: Stage) -> list[Manifest]:
    found: list[Manifest] = _cluster(stage)["status"]["brokerStatuses"]
    return found


def _rows(cluster: Manifest) -> dict[int, dict[str, Any]]:
    return {each["broker"]: each for each in cluster["status"].get("drains") or ()}


def _replicas(rows: dict[int, dict[str, Any]]) -> int:
    return sum(row["replicas"] for row in rows.values())


def _is_draining(rows: dict[int, dict[str, Any]]) -> bool:
    return any(one["state"] == "Draining" for one in rows.values())


def _drains(
    stage: Stage, fits: Callable[[dict[int, dict[str, Any]]], bool]
) -> dict[int, dict[str, Any]]:
    """Status rows of the drains, once they fit."""
    found = stage.penstock.streams.wait(
        CLUSTERS, stage.penstock.cluster, lambda cluster: fits(_rows(cluster)), DRAINED_S
    )
    return _rows(found)


def _looks(stage: Stage) -> list[tuple[float, dict[int, dict[str, Any]]]]:
    """Rows of the drains, and when they were seen, in seconds since 1970, until three are left."""
    looks: list[tuple[float, dict[int, dict[str, Any]]]] = []
    stage.logs.mkdir(parents=True, exist_ok=True)

    def gone() -> bool:
        status = _cluster(stage)["status"]
        rows = {each["broker"]: each for each in status.get("drains") or ()}
        now = time.time_ns() / 1e9
        looks.append((now, rows))
        with (stage.logs / "looks.jsonl").open("a") as kept:
            kept.write(json.dumps([now, rows, status.get("moves")]) + "\n")
        return len(stage.penstock.broker_pods()) == 3

    wait_until("three brokers", gone, DRAINED_S)
    return looks


def _expect_foretold(stage: Stage, looks: list[tuple[float, dict[int, dict[str, Any]]]]) -> None:
    """Compares the time left that was shown after a minute with how long it took from there on."""
    began = next(at for at, rows in looks if _is_draining(rows))
    ended = max(at for at, rows in looks if _is_draining(rows))
    stage.measure("two brokers were emptied", ended - began)
    at, rows = next(look for look in looks if look[0] >= began + FORETOLD_S)
    ends = {broker: row["eta"] for broker, row in rows.items() if "eta" in row}
    stage.expect(ends, f"no end is told after {at - began:.0f} s: {rows}")
    foretold = max(datetime.fromisoformat(end).timestamp() for end in ends.values()) - at
    took = ended - at
    stage.say(f"after a minute: {foretold:.0f} s more, it took {took:.0f} s; by broker: {ends}")
    stage.expect(took > FORETOLD_S, f"it was over after {ended - began:.0f} s: nothing to foretell")
    off = abs(foretold - took) / took * 100
    stage.measure("the end told after a minute is off by", off, "%", limit=FORETOLD_PERCENT)


def _rate(stage: Stage) -> float:
    """Of all copies together, bytes per second."""
    try:
        said = json.loads(stage.penstock.cli("partitions", "status", "-o", "json"))
    except (CommandError, ValueError):
        return 0.0
    moves = said.get("moves") or []
    return float(sum(move.get("bytes_per_second") or 0 for move in moves))


def _rate_is_near(stage: Stage, limit: float) -> None:
    """The limit is a broker's: three send at most, two of which hold what leaves."""
    wait_until("copies run", lambda: _rate(stage) > 0, 120.0)
    fastest = max(_rate(stage) for _ in range(5))
    stage.measure("copy rate at 2 MiB/s for each broker", fastest / MIB, "MiB/s")
    stage.expect(fastest <= 5 * limit, f"{fastest / MIB:.1f} MiB/s")


def _rate_follows(stage: Stage) -> None:
    """Without a limit. Of what was copied during the outage, nothing is left to see."""
    began = time.monotonic()
    while _replicas(_rows(_cluster(stage))):
        if _rate(stage) > 6 * MIB:
            stage.measure("the rate follows", time.monotonic() - began, limit=FOLLOWS_S)
            return
        stage.expect(time.monotonic() - began < SHARE_S, "copies stay slow")
    stage.say("all had been copied before the limit went")


def _no_error(stage: Stage, load: Load, verdict: Verdict) -> None:
    """No client was told that anything failed, and none waited long."""
    failed = verdict.figures.get("failed", 0)
    if failed:
        raise E2EError(f"{load.topic}: {failed} records failed for good")
    stage.measure("longest write gap", verdict.write_gap_s, limit=GAP_S)
    stage.measure("longest write gap of a partition", verdict.partition_write_gap_s)
