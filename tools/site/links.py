"""Links between files of the repository become links between pages of the site.

A link to a page leads to that page, wherever it lies on the site. A link to a file that is no
page, such as a test, stays as text: the site has no copy of the repository. A link to nothing is
an error: `BrokenLinkError` names the page, the link and the line.
"""

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tools.site.pages import DECISIONS

_LINK_OR_CODE: Final = re.compile(
    r"(?P<code>^[ ]*```.*?^[ ]*```)|(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)",
    re.DOTALL | re.MULTILINE,
)
_OUTSIDE: Final = ("https://", "http://", "mailto:", "#")


class BrokenLinkError(Exception):
    """A link leads to nothing."""


def rewrite(text: str, source: str, pages: Mapping[str, str], root: Path) -> str:
    """`text` of the file `source` (relative to `root`), with the links of its page."""

    def replaced(link: re.Match[str]) -> str:
        line = text.count("\n", 0, link.start()) + 1
        return _rewritten(f"{source}:{line}", source, pages, root, link)

    return _LINK_OR_CODE.sub(lambda one: one[0] if one["code"] else replaced(one), text)


def _rewritten(
    place: str, source: str, pages: Mapping[str, str], root: Path, link: re.Match[str]
) -> str:
    target, _, anchor = link["target"].partition("#")
    if link["target"].startswith(_OUTSIDE):
        return link[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    page = pages.get(path) or pages.get(f"{path}/README.md")
    if page is None and path == "docs/decisions":
        page = DECISIONS
    if page is None:
        if not (root / path).exists():
            raise BrokenLinkError(f"{place}: {link['target']} does not exist")
        return link["text"]
    here = posixpath.dirname(pages[source])
    there = posixpath.relpath(page, here or ".")
    return f"{link['image']}[{link['text']}]({there}{'#' + anchor if anchor else ''})"
