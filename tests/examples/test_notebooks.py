"""The notebook, and the page about notebooks, run as they stand, cell after cell."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cluster import Cluster

from penstock.client import Consumer

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "localhost:9092"
pytest.importorskip("pandas")


def cells(path: Path) -> Iterator[str]:
    """The code, in order."""
    text = path.read_text()
    if path.suffix == ".md":
        yield from re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        return
    for cell in json.loads(text)["cells"]:
        if cell["cell_type"] == "code":
            yield "".join(cell["source"])


@pytest.mark.parametrize("name", ["docs/notebooks.md", "examples/notebook/sales.ipynb"])
def test_every_cell_runs_after_the_ones_before_it(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list(cells(ROOT / name))
    assert len(found) > 4
    scope: dict[str, Any] = {}
    with Cluster(tmp_path) as cluster:
        monkeypatch.setenv("PENSTOCK_BOOTSTRAP", cluster.bootstrap)
        for number, cell in enumerate(found):
            code = compile(cell.replace(ADDRESS, cluster.bootstrap), f"{name}[{number}]", "exec")
            exec(code, scope)
        with Consumer(cluster.bootstrap) as reader:
            assert len(reader.read_to_end("sales", max_records=1_000)) == 1_000
    assert scope["frame"].groupby("value.city").size().to_dict() == {
        "Bern": 334,
        "Lima": 333,
        "Oslo": 333,
    }
    assert not scope["sales"].truncated
