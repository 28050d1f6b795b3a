"""Spark writes a stream exactly once while it runs tasks twice at a time.

One task of each batch is slow at its first attempt, so Spark starts a twin of it on the other
executor. Both write; the driver takes the rows of one, and those of the other must never be seen.
Which attempts there were is in Spark's event log.
"""

import json
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from e2e.harness.process import wait_until
from e2e.harness.scenario import Stage, scenario
from e2e.scenarios.spark import DONE_S, applied, produce
from e2e.scenarios.spark_sink import RECORDS, Copies

SLOW_S: Final = 6.0
SETTINGS: Final = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "40",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.dir": "file:///work",
    "spark.eventLog.rolling.enabled": "false",
    "spark.eventLog.compress": "false",
}
"""A twin for each task that takes longer than half of the others did, if that is half a second."""


class Twins(NamedTuple):
    """How many were started, and how many of them ended before the attempt they were to replace."""

    started: int
    won: int


def twins(lines: Iterable[str]) -> Twins:
    """Of an event log, those that have ended."""
    ended: list[dict[str, Any]] = [
        event
        for event in map(json.loads, lines)
        if event["Event"] == "SparkListenerTaskEnd" and event["Task Info"]["Speculative"]
    ]
    won = [event for event in ended if event["Task End Reason"]["Reason"] == "Success"]
    return Twins(len(ended), len(won))


@scenario("Spark writes a stream exactly once with speculation on", images=("spark",))
def spark_speculation(stage: Stage) -> None:
    """Tasks are slow for varying times, so that sometimes the twin is first, sometimes not."""
    with stage.topic() as source, stage.topic("-copy") as target:
        query = Copies(stage, source, target, SETTINGS, [f"--slow={SLOW_S}"])
        with applied(stage, query.manifests()):
            produce(stage, source, 1, RECORDS)
            most = 0

            def copied() -> bool:
                nonlocal most
                most = max(most, open_branches(stage))
                return query.stored() >= RECORDS

            wait_until("all is copied", copied, DONE_S)
            query.wait(RECORDS)
            wait_until("Spark has noted the last batch", query.idle)
            log = query.on_volume("cat *.inprogress")
            found = twins(log.splitlines())
        stage.say(f"at most {most} branches were open at once")
        stage.expect(found.started, "Spark never ran a task twice at a time")
        stage.measure("tasks that ran twice at a time", found.started, "tasks")
        stage.measure("tasks whose twin was first", found.won, "tasks")


def open_branches(stage: Stage) -> int:
    """Of all applications."""
    rows = json.loads(stage.penstock.cli("txn", "list", "--state=open", "-o", "json"))
    return len(rows)
