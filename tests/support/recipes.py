"""The programs of docs/delivery.md, as they stand there: what the page shows is what tests run."""

from support.cluster import Cluster
from support.documents import ROOT

from tools.snippets.page import read_page

PAGE = "docs/delivery.md"


def recipes(heading: str) -> list[str]:
    """The blocks of Python below the heading, in order."""
    found = [
        snippet.text
        for snippet in read_page(ROOT, PAGE)
        if (snippet.heading, snippet.language) == (heading, "python")
    ]
    assert found, f"{PAGE} has no program below {heading!r}"
    return found


def at(cluster: Cluster, program: str, **replaced: str) -> str:
    """`program` for this cluster, with other names: each must stand there in double quotes."""
    program = _replace(program, "localhost:9092", cluster.bootstrap)
    for stands, name in replaced.items():
        program = _replace(program, stands.replace("_", "-"), name)
    return program


def _replace(program: str, stands: str, here: str) -> str:
    assert f'"{stands}"' in program, f"{stands!r} is not in the program:\n{program}"
    return program.replace(f'"{stands}"', f'"{here}"')
