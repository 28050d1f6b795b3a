"""What every benchmark does alike: figures as JSON lines, progress on stderr, a local cluster.

A figure is `{"name", "value", "unit", "vs", "ratio"}`: `vs` names the peer or limit measured in the
same run and `ratio` is value / peer, because absolute times of shared machines move by half. Some
have a `goal` for the value or the ratio, in words.
"""

import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from prometheus_client.parser import text_string_to_metric_families

from penstock_broker.local import LocalCluster
from penstock_broker.local.cluster import LocalOptions

K = TypeVar("K")
T = TypeVar("T")
MANIFEST = """
apiVersion: penstock.dev/v1alpha1
kind: Cluster
metadata: {{name: bench}}
spec:
  brokers: {brokers}
"""


def figure(
    name: str,
    value: float,
    unit: str,
    vs: str | None = None,
    peer: float | None = None,
    *,
    ratio: float | None = None,
    goal: str = "",
) -> None:
    """Prints one line; `peer` is what `vs` reached in the same unit, `ratio` value / peer if not
    given."""
    if ratio is None and peer:
        ratio = value / peer
    shown = round(ratio, 3) if ratio is not None else None
    line = {"name": name, "value": _round(value), "unit": unit, "vs": vs, "ratio": shown}
    if peer is not None:
        line["vs_value"] = _round(peer)
    if goal:
        line["goal"] = goal
    print(json.dumps(line), flush=True)


def figure_of_rounds(
    name: str, ours: list[float], unit: str, vs: str, theirs: list[float], *, goal: str = ""
) -> None:
    """Prints medians of two that took turns; the ratio is the median of the rounds' ratios.

    Both of a round had the same machine, whose speed may be another one in the next round.
    """
    ratio = median([one / other for one, other in zip(ours, theirs, strict=True)])
    figure(name, median(ours), unit, vs, median(theirs), ratio=ratio, goal=goal)


def in_turns(rounds: int, runs: Mapping[K, Callable[[], T]]) -> dict[K, list[T]]:
    """What each of `runs` returned, by round.

    Each run leaves the machine something to do. What is to be written is written before the next
    one begins; for the rest the order is another in every round: over as many rounds as there are
    runs, twice as many if their number is odd, each comes equally often behind each other one (a
    Williams design, balanced for carry-over).
    """
    names = list(runs)
    results: dict[K, list[T]] = {name: [] for name in names}
    for turn in range(rounds):
        for at in order_of(turn, len(names)):
            os.sync()
            results[names[at]].append(runs[names[at]]())
    return results


def order_of(turn: int, count: int) -> list[int]:
    """Who comes when in round `turn`, 0 to `count` - 1: a row of a Williams design."""
    ends = [at // 2 + 1 if at % 2 else count - at // 2 for at in range(count)]
    row = [(at + turn) % count for at in ends]
    return row[::-1] if count % 2 and turn // count % 2 else row


def progress(text: str) -> None:
    print(f"· {text}", file=sys.stderr, flush=True)


def run_parts(parts: Mapping[str, Callable[[], None]]) -> int:
    """Runs one after the other, also behind one that failed: the others' figures are worth having.

    The exit code: 1 if any failed, which are named at the end.
    """
    failed = []
    for name, measure in parts.items():
        progress(name)
        try:
            measure()
        except SystemExit as why:  # it says what is missing, or did not happen
            progress(str(why))
            failed.append(name)
        except Exception:  # noqa: BLE001 - shown, and told by the exit code
            traceback.print_exc()
            failed.append(name)
    for name in failed:
        progress(f"{name} failed")
    return 1 if failed else 0


def best_of(times: int, run: Callable[[], float]) -> float:
    """The best of several runs: the least disturbed by the machine's other work."""
    return max(run() for _ in range(times))


def percentile(samples: list[float], share: float) -> float:
    """`share` 0..1 of the sorted samples, the next higher one; p99 of 20 is the largest."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median(samples: list[float]) -> float:
    return statistics.median(samples)


@contextlib.contextmanager
def local_cluster(brokers: int, *, secure: bool = False) -> Iterator[LocalCluster]:
    """A cluster of real processes on free ports, gone afterwards.

    `secure`: with TLS, tokens and rules; clients need its `directory.client_files`.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch:
        manifest = Path(scratch) / "cluster.yaml"
        manifest.write_text(MANIFEST.format(brokers=brokers))
        options = LocalOptions(secure=secure)
        data = Path(scratch) / "data"
        cluster = LocalCluster.from_manifest(manifest, data_dir=data, options=options)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


def cpu_seconds(pid: int) -> float:
    """User and system time a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def counted(cluster: LocalCluster, name: str) -> float:
    """A counter without labels, such as `penstock_isr_shrinks_total`, over all brokers."""
    total = 0.0
    for broker in cluster.broker_ids:
        page = f"http://{cluster.metrics_address(broker)}/metrics"
        with urllib.request.urlopen(page, timeout=60) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            values = [one.value for each in families for one in each.samples if one.name == name]
        assert len(values) == 1, f"broker {broker} exports {name} {len(values)} times"
        total += values[0]
    return total


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def elapsed(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _round(value: float) -> float:
    return round(value, 3) if abs(value) < 100 else round(value)
