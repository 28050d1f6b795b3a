"""Reads a Prometheus page as a scraper does."""

from dataclasses import dataclass, field
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True)
class Page:
    """`values`: by name, labels appended as `name{value,value}`. `gauges`: names of families.

    `labels`: a sample's name to the names of its labels. `families`: names, counters' with
    `_total`, to type and description; also those without series.
    """

    values: dict[str, float] = field(default_factory=dict)
    gauges: set[str] = field(default_factory=set)
    labels: dict[str, set[str]] = field(default_factory=dict)
    families: dict[str, tuple[str, str]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> float:
        """0 for what is not there: a counter with labels begins with its first event."""
        return self.values.get(name, 0.0)


def scrape(port: int) -> Page:
    """The page of a process on this machine."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as answer:
        text = answer.read().decode()
    page = Page()
    for family in text_string_to_metric_families(text):
        if not family.name.endswith("_created"):  # of counters
            suffix = "_total" if family.type == "counter" else ""
            page.families[family.name + suffix] = (family.type, family.documentation)
            if family.type == "gauge":
                page.gauges.add(family.name)
        for sample in family.samples:
            labels = ",".join(sample.labels.values())
            page.labels[sample.name] = set(sample.labels)
            page.values[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return page
