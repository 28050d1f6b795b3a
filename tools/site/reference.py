"""Pages written from code and schemas: the Python client, error codes, the chart's values."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock.errors import TRAITS, ErrorCode, Lost
from tools.chart_values import table
from tools.site.python_reference import python_reference

ERRORS_INTRODUCTION: Final = """# Error codes

What a caller may conclude from each code. **Applied: no** means that the request has no effect and
never will; **maybe** that it may have had one. **Retry** means that the same request may succeed
later: clients do so by themselves within their timeouts. **Look up** means that the leader or
coordinator must be looked up again first.
"""
CHART_INTRODUCTION: Final = """# Chart values

`helm show values charts/penstock` prints the defaults. Helm refuses unknown or invalid values.
"""


def reference_pages(root: Path) -> dict[str, str]:
    """Path of the page → Markdown."""
    return {
        "reference/python.md": python_reference(),
        "reference/errors.md": "\n".join(_errors()),
        "reference/chart-values.md": f"{CHART_INTRODUCTION}\n{table(root)}",
    }


def _errors() -> Iterator[str]:
    yield ERRORS_INTRODUCTION
    yield "| number | code | applied | retry | look up | also lost |"
    yield "|---|---|---|---|---|---|"
    for code in ErrorCode:
        traits = TRAITS[code]
        lost = "" if traits.lost is Lost.NOTHING else traits.lost.name.lower()
        yield (
            f"| {code.value} | `{code.name}` | {traits.applied.name.lower()} "
            f"| {'yes' if traits.retriable else ''} "
            f"| {'yes' if traits.refresh_metadata else ''} | {lost} |"
        )
    yield "\nFrom 1000 on, only a client sees the condition; no server sends it.\n"
