"""The site as its generator builds it: it loads nothing from elsewhere, and no anchor is broken."""

import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

import pytest

from tools.site.__main__ import STAGE, NotBuiltError, build, stage

ROOT: Final = Path(__file__).resolve().parents[2]
SAYS_ONLY: Final = {"canonical", "alternate", "next", "prev"}
"""`rel` of links that a browser does not follow by itself."""
LOADS_FROM_OTHERS: Final = {"mermaid", "glightbox", "pyodide"}
"""Classes for which the theme's script loads another one from elsewhere."""
ELSEWHERE: Final = re.compile(r"\s*(?:https?:)?//", re.IGNORECASE)


class Loaded(HTMLParser):
    """`found`: addresses that a browser loads when it shows the page, and `class` names that make
    the theme load more."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self._in_style = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._in_style = tag == "style"
        self.found += [given[name] for name in ("src", "data", "poster") if name in given]
        self.found += [each.strip() for each in given.get("srcset", "").split(",") if each]
        self.found += styled(given.get("style", ""))
        if tag in {"use", "image"}:
            self.found += [given[name] for name in ("href", "xlink:href") if name in given]
        if tag == "link" and not set(given.get("rel", "").split()) & SAYS_ONLY:
            self.found.append(given.get("href", ""))
        if "data-md-component" in given and given["data-md-component"] == "source":
            self.found.append("https://api.github.com/")  # stars of a repository
        self.found += [
            f"//{one}" for one in given.get("class", "").split() if one in LOADS_FROM_OTHERS
        ]

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.found += styled(data)


def styled(css: str) -> list[str]:
    """Addresses in a stylesheet."""
    imports = re.findall(r"@import\s+[\"']([^\"']+)", css)
    return imports + [each.strip("\"' ") for each in re.findall(r"url\(([^)]*)\)", css)]


def from_elsewhere(found: list[str]) -> list[str]:
    return [each for each in found if ELSEWHERE.match(each)]


def addresses(site: Path) -> Iterator[tuple[Path, list[str]]]:
    for path in site.rglob("*"):
        if path.suffix in {".html", ".svg"}:
            yield path, Loaded(path.read_text()).found
        elif path.suffix == ".css":
            yield path, styled(path.read_text())


def test_it_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    shutil.copyfile(ROOT / "mkdocs.yml", tmp_path / "mkdocs.yml")
    stage(ROOT, tmp_path / STAGE)
    build(tmp_path)
    loaded = dict(addresses(tmp_path / "build/site"))
    index = loaded[tmp_path / "build/site/index.html"]
    assert any(each.endswith(".js") for each in index)
    assert any(each.endswith(".css") for each in index)
    assert any(path.suffix == ".css" and found for path, found in loaded.items())
    assert not {
        path.name: others for path, each in loaded.items() if (others := from_elsewhere(each))
    }


@pytest.mark.parametrize(
    "page",
    [
        '<script src="https://example.org/x.js"></script>',
        '<link rel="stylesheet" href="//example.org/x.css">',
        '<link rel="preconnect" href="https://fonts.example.org">',
        '<img alt="" src="HTTP://example.org/x.png">',
        '<img srcset="x.png 1x, https://example.org/x.png 2x">',
        '<p style="background: url(https://example.org/x.png)">',
        '<style>@import "https://example.org/x.css";</style>',
        "<style>@font-face { src: url('https://example.org/x.woff2') }</style>",
        '<pre class="mermaid">',
    ],
)
def test_what_is_loaded_from_elsewhere_is_found(page: str) -> None:
    assert from_elsewhere(Loaded(page).found)


@pytest.mark.parametrize(
    "page",
    [
        '<a href="https://example.org/">',
        '<link rel="canonical" href="https://penstock.dev/">',
        '<script src="./x.js"></script>',
        "<style>p { background: url(\"data:image/svg+xml,<svg xmlns='http://x'>\") }</style>",
    ],
)
def test_a_link_or_what_the_site_has_itself_is_not(page: str) -> None:
    assert not from_elsewhere(Loaded(page).found)


@pytest.mark.parametrize("link", ["[x](b.md#nowhere)", "[x](#nowhere)", "[x](nowhere.md)"])
def test_a_link_to_an_anchor_or_a_page_that_is_not_there_fails(tmp_path: Path, link: str) -> None:
    (tmp_path / STAGE).mkdir(parents=True)
    (tmp_path / "mkdocs.yml").write_text(f"site_name: x\ndocs_dir: {STAGE}\nsite_dir: build/site\n")
    (tmp_path / STAGE / "b.md").write_text("# B\n\n## Here\n")
    index = tmp_path / STAGE / "index.md"
    index.write_text("# A\n\n[y](b.md#here) [z](#a)\n")
    build(tmp_path)
    index.write_text(f"# A\n\n{link}\n")
    with pytest.raises(NotBuiltError, match=r"index\.md:3"):
        build(tmp_path)
