"""Transactions and pipes while those who decide cannot be reached: a coordinator, the API server.

Loads and judges are those of `transactions.py` and `pipes.py`.
"""

import time

from e2e.harness.process import wait_until
from e2e.harness.scenario import Stage, scenario
from e2e.scenarios.control import AWAY_GAP_S
from e2e.scenarios.faults import settle
from e2e.scenarios.pipes import PAUSE, piped
from e2e.scenarios.transactions import busiest, coordinators, loads

OUTAGE_S = 40.0
CUT_S = 30.0
"""Beyond the timeout of the load's transactions, 10 s, and until a replica leaves the ISR, 10 s."""
AFTER_CUT_S = 10.0


def outage(stage: Stage, victim: str) -> None:
    """The API server is unavailable; in the middle of that a broker's processes are killed."""
    place = stage.nodes.place(victim, stage.penstock.streams)
    numbers = " ".join(map(str, stage.nodes.processes(place)))
    began = time.monotonic()
    with stage.api_server.away("hang"):
        until = began + OUTAGE_S / 2
        wait_until("half of the outage", lambda: time.monotonic() > until, OUTAGE_S)
        stage.nodes.shell(place.node, f"kill -KILL {numbers}")
        until = began + OUTAGE_S
        wait_until("the other half", lambda: time.monotonic() > until, OUTAGE_S)


@scenario("Transactions continue without the API server, even if their coordinator dies")
def transactions_without_api_server(stage: Stage) -> None:
    """The remaining brokers decide without the API which one coordinates now.

    All are at other addresses than when the controller took over and asked them last.
    """
    penstock = stage.penstock
    for broker in range(3):
        penstock.kill_pod(penstock.pod(broker))
        penstock.wait_brokers(3, 240.0)
    penstock.wait_ready(240.0)
    with loads(stage) as both:
        outage(stage, penstock.pod(busiest(stage, coordinators(stage, both.batches))))
        both.go_on(50, 120.0)
        penstock.wait_brokers(3, 240.0)
        penstock.wait_in_sync(both.batches.topic, 240.0)
        both.go_on()
        both.judge(stage, all_s=AWAY_GAP_S, one_s=2 * AWAY_GAP_S)
    penstock.wait_ready(240.0)


@scenario("A transaction coordinator and a leader of the data are cut off from each other")
def transactions_cut(stage: Stage) -> None:
    """All others reach both, so neither is replaced. Whatever needs both waits, or is aborted,
    until the cut is over. Producers of the third broker, if there are any, as there usually are,
    continue when each of the two has left the other's ISR. Then all commit again."""
    penstock = stage.penstock
    with loads(stage) as both:
        deciding = coordinators(stage, both.batches)
        broker = busiest(stage, deciding)
        leaders = {one.leader for one in penstock.partitions(both.batches.topic)}
        others = [each for each in leaders if each is not None and each != broker]
        leader = min(others, key=lambda each: len(deciding.get(each, ())))
        stage.say(f"cut off from broker {leader}, which leads")
        pods = [penstock.streams.get("pod", penstock.pod(each)) for each in (broker, leader)]
        with stage.nodes.cut(*pods):
            until = time.monotonic() + CUT_S
            if deciding.keys() - {broker, leader}:
                both.batches.goes_on(20, CUT_S)
                stage.say("producers that do not need both go on")
            wait_until("cut long enough", lambda: time.monotonic() > until, 2 * CUT_S)
        settle(stage, both.batches, both.batches.topic, time.monotonic())
        both.judge(stage, one_s=CUT_S + AFTER_CUT_S)
    penstock.wait_ready()


@scenario("A pipe continues without the API server while a leader dies; each record once")
def pipe_without_api_server(stage: Stage) -> None:
    penstock = stage.penstock
    with piped(stage) as pipe:
        topic = pipe.pipe.topic
        outage(stage, penstock.pod(penstock.leader(topic)))
        pipe.running.goes_on(50, 120.0)
        penstock.wait_brokers(3, 240.0)
        penstock.wait_in_sync(topic, 240.0)
    stage.measure(PAUSE, pipe.longest_pause_s(), limit=AWAY_GAP_S)
    penstock.wait_ready(240.0)
