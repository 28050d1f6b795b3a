"""What processes export while a test makes a fault, kept in small files.

    processes ──a scrape per second──▶ Recorder ──▶ recorded/<fault>.json
                                                      "name{labels}": "0*6 1*40"

A file has a line per series, of those that an alert reads, and `also` a few more: a value per
second, `0*6` for six times the same one, `_` for a process that did not answer. Times since 1970
become seconds since the recording began, because that is what promtool calls now. Of thousands of
partitions of groups, the first of each process are kept.
"""

import json
import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import groupby
from pathlib import Path
from threading import Event
from typing import Final
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

TESTS: Final = Path(__file__).resolve().parents[1]
RECORDED: Final = TESTS / "monitoring" / "recorded"
RULES: Final = TESTS.parent / "charts" / "penstock" / "files" / "monitoring" / "alerts.yaml"
HEALTHY_S: Final = 6
FAULTY_S: Final = 40
"""Groups are looked at once in 15 s."""
_ANSWER_S: Final = 0.9
_ALIKE_MAX: Final = 50
"""Series of one name, of one process."""
_POINTS_IN_TIME: Final = ("penstock_tls_certificate_expiry_seconds",)
_SELECTOR: Final = re.compile(r"\b((?:penstock|process)_\w+)(?:\{([^}]*)\})?")
_EQUAL: Final = re.compile(r'(\w+)="([^"]*)"')
Series = dict[str, list[float | None]]
"""By name with labels, as PromQL writes it; None: the process did not answer."""
Labels = Mapping[str, str]


@cache
def watched() -> Mapping[str, Sequence[Labels]]:
    """The series that alerts read: by name, labels that one of the rules asks for."""
    found: dict[str, list[Labels]] = {}
    for name, matchers in _SELECTOR.findall(RULES.read_text()):
        found.setdefault(name, []).append(dict(_EQUAL.findall(matchers)))
    return found


def is_watched(name: str, labels: Labels) -> bool:
    return any(asked.items() <= labels.items() for asked in watched().get(name, ()))


def series_name(name: str, labels: Labels) -> str:
    """With the labels that the chart's PodMonitors add."""
    every = {"namespace": "streams", "cluster": "flights", **labels}
    shown = ",".join(f'{key}="{value}"' for key, value in sorted(every.items()) if value)
    return f"{name}{{{shown}}}"


def of_operator(labels: Labels) -> Labels:
    """As its PodMonitor adds them: its metrics say of which Cluster they are."""
    return {"namespace": "penstock-system", "cluster": "", **labels}


class Recorder:
    """Scrapes processes. `targets`: instance to the address of its endpoint, which may change.

    `also`: metrics that no alert reads.
    """

    def __init__(self, targets: Mapping[str, str], also: Collection[str] = ()) -> None:
        self._targets = targets
        self._also = also
        self._began_s = time.time_ns() / 1e9
        self._alike: Counter[tuple[str, str]] = Counter()
        self.series: Series = {}
        self.scrapes = 0

    def run(self, seconds: int) -> None:
        with ThreadPoolExecutor(8) as threads:
            for _ in range(seconds):
                due = time.monotonic() + 1
                answers = threads.map(_page, self._targets.values())
                for instance, page in zip(self._targets, answers, strict=True):
                    self._take(instance, page)
                self.scrapes += 1
                for values in self.series.values():
                    values.extend([None] * (self.scrapes - len(values)))
                Event().wait(max(0.0, due - time.monotonic()))

    def _take(self, instance: str, page: str) -> None:
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if sample.name not in self._also and not is_watched(sample.name, sample.labels):
                    continue
                labels = {"instance": instance, **sample.labels}
                if sample.name.startswith("penstock_operator_"):
                    labels = dict(of_operator(labels))
                series = series_name(sample.name, labels)
                shift = self._began_s if sample.name in _POINTS_IN_TIME else 0.0
                if series not in self.series:
                    self._alike[sample.name, instance] += 1
                    if self._alike[sample.name, instance] > _ALIKE_MAX:
                        continue
                    self.series[series] = [None] * self.scrapes
                self.series[series].append(round(sample.value - shift, 3))


def _page(address: str) -> str:
    """Empty: it did not answer in time."""
    try:
        with urlopen(f"http://{address}/metrics", timeout=_ANSWER_S) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def save(fault: str, series: Series) -> None:
    """Writes one file."""
    RECORDED.mkdir(exist_ok=True)
    lines = (f"{json.dumps(name)}: {json.dumps(_packed(series[name]))}" for name in sorted(series))
    (RECORDED / f"{fault}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def load(fault: str) -> Series:
    """Reads one file."""
    packed: dict[str, str] = json.loads((RECORDED / f"{fault}.json").read_text())
    return {name: list(_unpacked(values)) for name, values in packed.items()}


def _packed(values: Iterable[float | None]) -> str:
    return " ".join(_run(value, len(list(same))) for value, same in groupby(values))


def _run(value: float | None, times: int) -> str:
    shown = "_" if value is None else f"{value:.12g}"
    return shown if times == 1 else f"{shown}*{times}"


def _unpacked(packed: str) -> Iterator[float | None]:
    for run in packed.split():
        shown, _, times = run.partition("*")
        yield from [None if shown == "_" else float(shown)] * int(times or 1)
