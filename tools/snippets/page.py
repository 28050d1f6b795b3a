"""A page of Markdown as a list of snippets, each with the way in which it is tested.

A comment on the line above a fence says how, and the site does not show it:

    <!-- snippet: kubernetes -->              needs a cluster of Kubernetes; e2e runs it
    <!-- snippet: run by tests/x/test_y.py -->  that test runs it, or that scenario of e2e, and
                                              names the page
    <!-- snippet: until "some text" -->       never ends: interrupted once it has printed this
    <!-- snippet: given                       commands that the page takes for granted, run
    penstock topic create flights             where they stand
    -->
    <!-- output of the last -->               what the snippet before has printed, `…` for anything

Without one, programs and commands run in the order of the page. What is neither run nor looked at
is a picture: a fence that says `text`. A fence without a language is taken for a shell's if it has
commands of ours, and is an error otherwise.
"""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Final

from tools.site.pages import pages

SHELL: Final = ("bash", "sh", "console")
VALUES: Final = ("yaml", "json", "toml")
LANGUAGES: Final = ("python", *SHELL, *VALUES, "promql", "text", "output")
_TOLD: Final = ("CHANGELOG.md", "docs/decisions/", "docs/e2e-results.md", "docs/benchmarks.md")
_FENCE: Final = re.compile(r"(?P<indent> *)(?P<ticks>```+)(?P<language>[\w-]*)\s*")
_HEADING: Final = re.compile(r"#{1,6} (?P<text>.*)")
_ONE_LINE: Final = re.compile(r"\s*<!-- (?P<text>(?:snippet:|output of).*?) -->\s*")
_LIKE_OURS: Final = re.compile(r"\s*<!--\s*(?:snip|output)", re.IGNORECASE)
_LIKE_A_FENCE: Final = re.compile(r"\s*(?:```|~~~)")
_GIVEN: Final = "<!-- snippet: given"
_OURS: Final = re.compile(r"^(?P<prompt>\$ )?(?:kubectl|penstock) [a-z]", re.MULTILINE)
_UNTIL: Final = re.compile(r'until "(?P<text>[^"]+)"')


class How(Enum):
    """How a snippet is tested."""

    RUN = auto()
    """With the others of its page, in their order."""
    GIVEN = auto()
    """The same, and readers do not see it."""
    KUBERNETES = auto()
    ELSEWHERE = auto()
    """By the test that `Snippet.detail` names."""
    VALUE = auto()
    """A manifest or another file; it is parsed."""
    OUTPUT = auto()
    """What the snippet before has printed."""
    PICTURE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """What stands between two fences, or in a comment that gives it."""

    page: str
    """Path of the page, relative to the repository."""
    line: int
    """Of its first line, from 1."""
    heading: str
    """The last one above."""
    language: str
    text: str
    """Without the fence's indentation; ends with a line feed unless empty."""
    how: How
    detail: str = ""
    """A test's path, or the text after which it is interrupted."""

    @property
    def place(self) -> str:
        """As messages name it."""
        return f"{self.page}:{self.line}"


class SnippetError(Exception):
    """A page that cannot be read; says where and why."""


def read(text: str, page: str) -> list[Snippet]:
    """The snippets of `text` in their order. Raises SnippetError."""
    return list(_Reader(text, page).snippets())


def read_page(root: Path, page: str) -> list[Snippet]:
    """Of the file `page` below `root`. Raises SnippetError."""
    return read((root / page).read_text(), page)


def documents(root: Path) -> list[str]:
    """All pages whose snippets are tested: the site's. Those that tell of the past are not."""
    names = sorted(name for name in pages(root) if name.endswith(".md"))
    return [name for name in names if not name.startswith(_TOLD)]


class _Reader:
    """Goes over the lines once."""

    def __init__(self, text: str, page: str) -> None:
        self._lines = text.split("\n")
        self._page = page
        self._heading = ""

    def snippets(self) -> Iterator[Snippet]:
        at = 0
        comment = ""
        while at < len(self._lines):
            line = self._lines[at]
            if line.startswith(_GIVEN):
                at, snippet = self._given(at)
                yield snippet
            elif found := _FENCE.fullmatch(line):
                end = self._end(at, found)
                yield self._fenced(at, end, found, comment)
                at = end
            elif comment:
                raise SnippetError(f"{self._page}:{at}: no snippet follows <!-- {comment} -->")
            elif _LIKE_A_FENCE.match(line):
                raise SnippetError(
                    f"{self._page}:{at + 1}: {line.strip()!r} begins no snippet; it must be three "
                    "backticks and a language"
                )
            elif heading := _HEADING.fullmatch(line):
                self._heading = heading["text"]
            comment = self._comment(at)
            at += 1

    def _comment(self, at: int) -> str:
        """What the line says of the snippet below; "" if it is no comment of ours."""
        line = self._lines[at]
        if marked := _ONE_LINE.fullmatch(line):
            return marked["text"]
        if _LIKE_OURS.match(line) and not line.startswith(_GIVEN):
            raise SnippetError(f"{self._page}:{at + 1}: {line.strip()} is no comment that is known")
        return ""

    def _given(self, at: int) -> tuple[int, Snippet]:
        end = at
        while "-->" not in self._lines[end]:
            end += 1
            if end == len(self._lines):
                raise SnippetError(f"{self._page}:{at + 1}: the comment does not end")
        text = "\n".join(self._lines[at + 1 : end]) + "\n"
        return end, self._snippet(at + 2, "bash", text, How.GIVEN)

    def _end(self, at: int, fence: re.Match[str]) -> int:
        closing = re.compile(rf" *{fence['ticks']}\s*")
        for end in range(at + 1, len(self._lines)):
            if closing.fullmatch(self._lines[end]):
                return end
        raise SnippetError(f"{self._page}:{at + 1}: the snippet does not end")

    def _fenced(self, at: int, end: int, fence: re.Match[str], comment: str) -> Snippet:
        lines = self._lines[at + 1 : end]
        text = textwrap.dedent("\n".join([*lines, ""]))
        place = f"{self._page}:{at + 1}"
        language = fence["language"]
        if not language and (ours := _OURS.search(text)):
            language = "console" if ours["prompt"] else "bash"
        if language not in LANGUAGES:
            seen = f"in {language!r}" if language else "in no language"
            raise SnippetError(f"{place}: a snippet {seen}; it must be {', '.join(LANGUAGES)}")
        how, detail = _classified(place, comment, language)
        return self._snippet(at + 2, language, text, how, detail)

    def _snippet(self, line: int, language: str, text: str, how: How, detail: str = "") -> Snippet:
        return Snippet(
            page=self._page,
            line=line,
            heading=self._heading,
            language=language,
            text=text,
            how=how,
            detail=detail,
        )


def _classified(place: str, comment: str, language: str) -> tuple[How, str]:
    """How it is tested, and the detail. Raises SnippetError."""
    runs = language == "python" or language in SHELL
    if comment == "output of the last":
        return How.OUTPUT, ""
    said = comment.removeprefix("snippet: ")
    if language == "promql" and not said.startswith("run by "):
        raise SnippetError(f"{place}: only a test that the comment names can check a query")
    if not said:
        usual = How.VALUE if language in VALUES else How.PICTURE
        return (How.RUN if runs else usual), ""
    if said == "kubernetes":
        return How.KUBERNETES, ""
    if said.startswith("run by "):
        return How.ELSEWHERE, said.removeprefix("run by ")
    if runs and (found := _UNTIL.fullmatch(said)):
        return How.RUN, found["text"]
    raise SnippetError(
        f"{place}: {said!r} is no way to test a snippet; tools/snippets/page.py lists them"
    )
