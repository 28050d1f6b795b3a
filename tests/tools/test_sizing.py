"""The figures and the worked example of docs/sizing.md are those of the benchmarks and defaults."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from penstock.core.settings import BROKER_SETTINGS
from penstock_operator.objects.desired import DEFAULT_RESOURCES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/sizing.md").read_text()
CORES = 2
"""Of the machine that all of it was measured on, brokers and clients together."""
USABLE = 0.8
"""What plans of moves fill of a disk."""


def result(benchmark: str, name: str) -> dict[str, Any]:
    lines = (ROOT / f"benchmarks/results/{benchmark}.jsonl").read_text().splitlines()
    found: dict[str, Any] = next(
        each for each in map(json.loads, lines) if each["name"].endswith(name)
    )
    return found


def value(benchmark: str, name: str) -> float:
    return float(result(benchmark, name)["value"])


def per_core(name: str) -> float:
    """MB/s of a throughput in records of 1,000 bytes."""
    return value("throughput", name) * 1_000 / 1e6 / CORES


PRODUCED = per_core("produce, batch API, 1000 B, replication 3")
CONSUMED = per_core("consume to Arrow, 1000 B, replication 3")
TLS_IN = float(result("security", "bulk of 1 KB, produce")["ratio"])
TLS_OUT = float(result("security", "bulk of 1 KB, consume to Arrow")["ratio"])
KEPT = float(result("store_layout", "disk after retention")["ratio"])
ALONE = value("latency", "lone append, 1 client, CPU of three brokers per ack")
CROWD = value("latency", "lone append, 64 clients, CPU of three brokers per ack")
EMPTY = value("idle", "resident memory of an idle broker, no partitions")
THOUSAND = value("idle", "resident memory of an idle broker, 1,000 partitions of 3 replicas")
PEAK = value("memory", "174 greedy clients")
ONE_BATCH = value("producer_table", "remembered producer of a partition, 1 batch")
FIVE_BATCHES = value("producer_table", "remembered producer of a partition, 5 batches")
DEFAULTS = {each.key: each.default for each in BROKER_SETTINGS}


def rows(heading: str) -> dict[str, tuple[str, ...]]:
    """Of the first table below a heading: the first cell, and the others."""
    below = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = [
        tuple(cell.strip() for cell in line.strip("|").split("|"))
        for line in below.splitlines()
        if line.startswith("|")
    ]
    return {first: rest for first, *rest in cells[2:]}  # type: ignore[misc]


def test_the_figures_are_those_of_the_benchmarks() -> None:
    shown = {what: cells[0] for what, cells in rows("What was measured").items()}
    commits = value("groups", "commits waited for, per core of the coordinator's broker")
    idle = value("idle", "CPU of an idle broker, 1,000 partitions of 3 replicas")
    groups = value("groups", "CPU of a broker that coordinates 1,000 groups of one idle member")
    assert list(shown.values()) == [
        f"{KEPT:.3f}",
        f"{PRODUCED:.0f} MB/s",
        f"{CONSUMED:.0f} MB/s",
        f"{TLS_IN:.2f}, {TLS_OUT:.2f}",
        f"{ALONE:.2f} ms, {CROWD:.2f} ms",
        f"{commits:,.0f} /s",
        f"{EMPTY:.0f} MB",
        f"{THOUSAND - EMPTY:.1f} MB",
        f"{PEAK:.0f} MB",
        f"{ONE_BATCH:.0f} B, {FIVE_BATCHES:.0f} B",
        f"{idle:.2f} % of a core",
        f"{groups:.1f} % of a core",
        f"{int(DEFAULTS['log.cleaner.io.max.bytes.per.second']) >> 20} MiB/s",
    ]


def test_the_formulas_have_these_figures() -> None:
    text = " ".join(PAGE.split())
    strict_in, strict_out = PRODUCED * TLS_IN, CONSUMED * TLS_OUT
    batch_ms = 1_000 / (PRODUCED * 1e6 / 1_000)
    controllers = [
        value("scale", f"memory of the process, {size}")
        for size in ("3 brokers x 100 partitions", "200 brokers x 100,000 partitions")
    ]
    for shown in (
        f"replicas × {KEPT} ÷ brokers ÷ {USABLE}",
        (
            f"cores = MB/s in ÷ {PRODUCED:.0f} + MB/s out ÷ {CONSUMED:.0f} + single records per "
            f"second × {CROWD:.2f} ms … {ALONE:.2f} ms"
        ),
        f"MB/s in ÷ {strict_in:.0f} + MB/s out ÷ {strict_out:.0f}",
        f"costs {CROWD / batch_ms:.0f} to {ALONE / batch_ms:.0f} times the CPU",
        f"memory = {EMPTY:.0f} MB + {THOUSAND - EMPTY:.1f} MB per 1,000 partitions",
        (
            f"with the defaults is {PEAK:.0f} MB, and the default memory limit of a pod is "
            f"{DEFAULT_RESOURCES['limits']['memory']}"
        ),
        (
            f"takes {controllers[0]:.0f} MiB with 100 partitions and {controllers[1]:.0f} MiB with "
            "100,000"
        ),
        (
            f"`replica.copy.bytes.per.second` "
            f"({int(DEFAULTS['replica.copy.bytes.per.second']) >> 20} MiB/s)"
        ),
    ):
        assert shown in text


def test_the_worked_example_is_computed_from_them() -> None:
    mb_in, groups, days, replicas, partitions = 10, 3, 3, 3, 24
    mb_out = groups * mb_in
    cores = mb_in / round(PRODUCED * TLS_IN) + mb_out / round(CONSUMED * TLS_OUT)
    brokers = max(math.ceil(cores * 2) + 1, replicas)
    kept = mb_in * 1e6 * days * 86_400 * replicas * KEPT
    bounded = sum(
        int(DEFAULTS[key])
        for key in (
            "cache.bytes",
            "produce.inflight.bytes",
            "fetch.inflight.bytes",
            "log.cleaner.dedupe.buffer.size",
        )
    ) + int(DEFAULTS["replica.window.bytes"]) * (brokers - 1)
    memory = EMPTY + (THOUSAND - EMPTY) * partitions / 1_000 + bounded / 1e6
    into = mb_in * replicas / brokers
    out = mb_in * (replicas - 1) / brokers + mb_out / brokers
    shown = rows("A worked example")
    assert [cells[-1] for cells in shown.values()] == [
        f"{mb_out} MB/s",
        f"{cores:.2f}",
        f"{brokers}",
        f"{kept / 1e12:.2f} TB",
        f"{kept / brokers / USABLE / 2**30:,.0f} GiB",
        f"{memory:.0f} MB",
        f"{into:.0f} MB/s in, {out:.0f} MB/s out",
    ]
    how = shown["memory of each broker, settings as they are"][0]
    assert f"limits of the settings: {bounded / 1e6:.0f} MB" in how


@pytest.mark.parametrize("benchmark", sorted(set(re.findall(r"\| `([a-z_]+)` \|", PAGE))))
def test_every_benchmark_that_is_named_has_results(benchmark: str) -> None:
    assert (ROOT / f"benchmarks/results/{benchmark}.jsonl").is_file()
