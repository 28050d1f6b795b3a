"""Which file of the repository is which page of the site.

A page keeps its path below docs/; the others are named here. Addresses are what users see and
link to: `pyproject.toml` leads the links of README.md, as a package index shows it, to them.
"""

from pathlib import Path
from typing import Final

ELSEWHERE: Final = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "charts/penstock/README.md": "chart.md",
    "examples/README.md": "examples/index.md",
    "examples/go/README.md": "examples/go.md",
    "examples/groups/README.md": "examples/groups.md",
}
DECISIONS: Final = "decisions/index.md"
"""The list of decisions: written for the site, because in the repository the folder is the list."""


def pages(root: Path) -> dict[str, str]:
    """Source path → path of the page, both relative; pictures count as pages."""
    own = {
        path.relative_to(root).as_posix(): _page(path.relative_to(root / "docs"))
        for path in sorted((root / "docs").rglob("*"))
        if path.is_file()
    }
    return own | ELSEWHERE


def _page(path: Path) -> str:
    """A folder's README is its first page."""
    return (path.with_name("index.md") if path.name == "README.md" else path).as_posix()


def decisions_page(root: Path) -> str:
    """The titles of all decisions, newest first."""
    titles = {
        path.name: path.read_text().split("\n", 1)[0].lstrip("# ")
        for path in (root / "docs/decisions").glob("[0-9]*.md")
    }
    lines = [f"- [{titles[name]}]({name})" for name in sorted(titles, reverse=True)]
    return "\n".join(
        ["# Decisions", "", "What was chosen, why, and what it costs.", "", *lines, ""]
    )
