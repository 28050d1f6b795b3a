"""Three brokers become one, and three again, under a bank and a pipe.

There are two scenes. With one replica of everything, brokers come and go as `spec.brokers` says.
With three, fewer brokers are refused; so two are taken away by hand, as if their nodes were gone,
and come back with their volumes.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from e2e.harness.penstock import CLUSTERS, Penstock
from e2e.harness.process import CommandError, E2EError, wait_until
from e2e.harness.scenario import Stage, scenario
from e2e.scenarios.pipes import PAUSE, Piped, piped
from e2e.scenarios.resources import cluster
from e2e.scenarios.transactions import Loads, loads
from penstock.verify.history import read_history

SMALL = "small"
SCALED_S = 180.0
SCALED_PAUSE_S = 5.0
"""Nobody that serves anything is touched."""
ALONE_S = 20.0
"""Beyond the timeout of the load's transactions, 10 s."""
BACK_S = 25.0
"""Pods scheduled and started, in sync, and what was open meanwhile aborted."""
LEAVING_S = 5.0
"""What was under way when the pods were gone is still told."""


@scenario("A Cluster goes from one broker to three, one and three under a bank and a pipe")
def scaled_to_one(stage: Stage) -> None:
    """All data is on broker 0; the others have none, and are removed at once."""
    streams = stage.penstock.streams
    settings = {"default.replication.factor": 1, "min.insync.replicas": 1}
    small = replace(stage, penstock=stage.penstock.other(SMALL))
    streams.apply(
        cluster(
            SMALL, brokers=1, config=settings, deletionPolicy="Delete", **small.penstock.security
        )
    )
    try:
        small.penstock.wait_settled(SCALED_S)
        with loads(small, replicas=1) as both, piped(small, "-piped", replicas=1) as pipe:
            for brokers in (3, 1, 3):
                _scale(small, brokers)
                go_on(both, pipe)
            both.judge(stage, one_s=SCALED_PAUSE_S)
        stage.measure(PAUSE, pipe.longest_pause_s(), limit=SCALED_PAUSE_S)
    finally:
        small.penstock.end_tool()
        streams.delete(CLUSTERS, SMALL, wait_s=120.0)


def _scale(stage: Stage, brokers: int) -> None:
    began = time.monotonic()
    penstock = stage.penstock
    penstock.streams.call("scale", f"{CLUSTERS}/{penstock.cluster}", f"--replicas={brokers}")
    wait_until(f"{brokers} broker pods", lambda: len(penstock.broker_pods()) == brokers, SCALED_S)
    penstock.wait_settled(SCALED_S)
    stage.say(f"{brokers} brokers after {time.monotonic() - began:.1f} s")


def go_on(both: Loads, pipe: Piped) -> None:
    """Waits until all three loads are served."""
    both.go_on(20)
    pipe.running.goes_on(20)


@scenario("Two of three brokers are removed and come back, under a bank and a pipe", short=True)
def one_broker_left(stage: Stage) -> None:
    """`brokers: 1` is refused first: topics are to have three replicas. Then worker nodes take no
    pods, and the brokers on them are deleted. The one that is left acknowledges nothing, as
    min.insync.replicas is 2; when the others are back, all go on where they were."""
    with loads(stage) as both, piped(stage, "-piped") as pipe:
        _refused(stage)
        go_on(both, pipe)
        began = time.monotonic()
        with _two_gone(stage):
            alone = time.monotonic() + LEAVING_S
            wait_until("alone long enough", lambda: time.monotonic() > alone + ALONE_S)
        back = time.monotonic()
        stage.penstock.wait_brokers(3, 240.0)
        go_on(both, pipe)
        stage.measure("until all were served again", time.monotonic() - back)
        stage.penstock.wait_in_sync(both.batches.topic, 240.0)
        most = back - began + BACK_S
        both.judge(stage, one_s=most)
    stage.measure(PAUSE, pipe.longest_pause_s(), limit=most)
    for each in (*both, pipe.running):
        silent_s = longest_silence_s(each.history)
        stage.measure(f"{each.topic}: longest time without an acknowledgement", silent_s)
        told = f"{each.topic}: something was acknowledged within {back - alone:.1f} s of one broker"
        stage.expect(silent_s >= back - alone, told)
    stage.penstock.wait_ready(240.0)


def _refused(stage: Stage) -> None:
    """Asks for one broker; the API server must say why not."""
    penstock = stage.penstock
    try:
        penstock.streams.call("scale", f"{CLUSTERS}/{penstock.cluster}", "--replicas=1")
    except CommandError as error:
        stage.say(f"refused: {error.output}")
        stage.expect("default.replication.factor is 3" in error.output, "that is not why")
    else:
        raise E2EError("one broker is accepted for topics of three replicas")


def longest_silence_s(history: Path) -> float:
    """Between two acknowledgements, of whatever partition. By the history's own times: it is
    written behind what it tells of, on a busy machine by seconds."""
    times = [event["t"] for event in read_history(history) if event["e"] == "ack"]
    return max((later - one for one, later in pairwise(sorted(times))), default=0.0) / 1000


@contextmanager
def _two_gone(stage: Stage) -> Iterator[None]:
    """The brokers on the worker nodes are gone while the block runs: their volumes keep their pods
    from other nodes."""
    penstock, workers = stage.penstock, stage.nodes.workers()
    gone = [
        pod["metadata"]["name"]
        for pod in penstock.broker_pods()
        if pod["spec"]["nodeName"] in workers
    ]
    stage.expect(len(gone) == 2, f"two brokers are on worker nodes, seen {gone}")
    with stage.nodes.cordoned(*workers):
        stage.say(f"taking {' and '.join(sorted(gone))} away")
        penstock.streams.delete("pod", *gone, wait_s=None)
        wait_until("one broker is left", lambda: running_pods(penstock) == 1)
        yield


def running_pods(penstock: Penstock) -> int:
    """Brokers' pods that have not ended yet, those on their way out included."""
    return [pod["status"]["phase"] for pod in penstock.broker_pods()].count("Running")
