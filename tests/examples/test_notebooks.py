"""The notebook runs as it stands, cell after cell. `tests/documents` runs the page about them."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.cluster import Cluster

from penstock.client import Consumer

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = "examples/notebook/sales.ipynb"
ADDRESS = "localhost:9092"


def cells(path: Path) -> list[str]:
    """The code, in order."""
    found = json.loads(path.read_text())["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]


def test_every_cell_runs_after_the_ones_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = cells(ROOT / NOTEBOOK)
    assert len(found) > 4
    scope: dict[str, Any] = {}
    with Cluster(tmp_path) as cluster:
        monkeypatch.setenv("PENSTOCK_BOOTSTRAP", cluster.bootstrap)
        for number, cell in enumerate(found):
            code = compile(
                cell.replace(ADDRESS, cluster.bootstrap), f"{NOTEBOOK}[{number}]", "exec"
            )
            exec(code, scope)
        with Consumer(cluster.bootstrap) as reader:
            assert len(reader.read_to_end("sales", max_records=1_000)) == 1_000
    assert scope["frame"].groupby("value.city").size().to_dict() == {
        "Bern": 334,
        "Lima": 333,
        "Oslo": 333,
    }
    assert not scope["sales"].truncated
