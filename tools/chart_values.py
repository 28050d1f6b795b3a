"""Writes the values into the chart's README: `python -m tools.chart_values`, `--check`.

values.schema.json ──names, types, meanings──┐
values.yaml ──defaults───────────────────────┴──▶ charts/penstock/README.md, between two comments
                                             └──▶ the reference on the site
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "charts/penstock/README.md"
BEGIN: Final = "<!-- Written by `make chart` from values.yaml and values.schema.json. -->\n"
END: Final = "<!-- The end of what is written. -->\n"


def table(root: Path) -> str:
    """A row per value; one that has others below it has no default of its own."""
    chart = root / "charts/penstock"
    schema = json.loads((chart / "values.schema.json").read_text())
    values = yaml.safe_load((chart / "values.yaml").read_text())
    lines = ["| value | type | default | meaning |", "|---|---|---|---|"]
    lines += _rows(schema["properties"], values, "")
    return "\n".join(lines) + "\n"


def _rows(properties: dict[str, Any], values: dict[str, Any], path: str) -> Iterator[str]:
    for name, field in properties.items():
        if name not in values:  # `global`, which is Helm's
            continue
        nested = field.get("properties", {})
        kind = field["type"]
        choices = ", ".join(f"`{each}`" for each in field.get("enum", ()))
        default = "" if nested else f"`{json.dumps(values[name])}`"
        text = " ".join(filter(None, [field["description"], choices]))
        cells = [
            f"`{path}{name}`",
            " or ".join(kind) if isinstance(kind, list) else kind,
            default,
            text,
        ]
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
        yield from _rows(nested, values[name], f"{path}{name}.")


def rendered(page: str, rows: str) -> str:
    """The page with these rows in place of what is between the comments."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE.relative_to(ROOT)} lacks the comments that enclose the values")
    return f"{before}{BEGIN}\n{rows}\n{END}{after}"


def main(arguments: list[str]) -> int:
    """Writes the page, or with `--check` answers 1 when it is not what it should be."""
    page = PAGE.read_text()
    wanted = rendered(page, table(ROOT))
    if page == wanted:
        return 0
    if "--check" in arguments:
        print("charts/penstock/README.md has other values; run make chart", file=sys.stderr)
        return 1
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
