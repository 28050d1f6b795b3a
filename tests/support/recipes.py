"""The programs of docs/delivery.md, as they stand there: what the page shows is what tests run."""

import re
from pathlib import Path

from support.cluster import Cluster

PAGE = Path(__file__).parents[2] / "docs" / "delivery.md"


def recipes(heading: str) -> list[str]:
    """The blocks of Python below `## heading`, in order."""
    chapter = re.search(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert chapter is not None, f"{PAGE} has no chapter {heading!r}"
    return re.findall(r"^```python\n(.*?)^```$", chapter[1], re.MULTILINE | re.DOTALL)


def at(cluster: Cluster, program: str, **replaced: str) -> str:
    """`program` for this cluster, with other names: each must stand there in double quotes."""
    program = _replace(program, "localhost:9092", cluster.bootstrap)
    for stands, name in replaced.items():
        program = _replace(program, stands.replace("_", "-"), name)
    return program


def _replace(program: str, stands: str, here: str) -> str:
    assert f'"{stands}"' in program, f"{stands!r} is not in the program:\n{program}"
    return program.replace(f'"{stands}"', f'"{here}"')
