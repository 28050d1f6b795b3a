"""The form of all snippets of a page: `problems`, one line per mistake, with its place."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.snippets import commands, programs, values
from tools.snippets.page import SHELL, VALUES, How, Snippet
from tools.snippets.shell import script


def problems(snippets: Sequence[Snippet], root: Path) -> list[str]:
    """Of one page, in its order. `root`: of the repository, where tests are looked for."""
    found = []
    before: Snippet | None = None
    for snippet in snippets:
        found += [f"{snippet.place}: {one}" for one in _problems(snippet, before, root)]
        before = snippet
    return found


def _problems(snippet: Snippet, before: Snippet | None, root: Path) -> Iterator[str]:
    if snippet.how is How.ELSEWHERE:
        yield from _unnamed(snippet, root)
    if snippet.how is How.OUTPUT:
        if before is None or before.how not in (How.RUN, How.KUBERNETES, How.ELSEWHERE):
            yield "output of the last, but the snippet before it is not run"
    elif snippet.language == "python":
        yield from programs.problems(snippet.text)
    elif snippet.language in SHELL:
        yield from commands.problems(script(snippet.language, snippet.text))
    elif snippet.language in VALUES:
        yield from values.problems(snippet.language, snippet.text)


def _unnamed(snippet: Snippet, root: Path) -> Iterator[str]:
    """A test names the page, or all pages of its folder."""
    test = root / snippet.detail
    folder = snippet.page.rpartition("/")[0]
    if not (snippet.detail.startswith(("tests/", "e2e/")) and test.is_file()):
        yield f"{snippet.detail} is no test"
    elif not any(name in test.read_text() for name in (snippet.page, f"{folder}/*.md")):
        yield f"{snippet.detail} does not name {snippet.page}"
