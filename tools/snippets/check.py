"""The form of all snippets of a page: `problems`, one line per mistake, with its place.

`named_problems` looks at the commands in its text, between single backticks.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tools.snippets import commands, programs, values
from tools.snippets.page import SHELL, VALUES, How, Snippet
from tools.snippets.shell import script

_FENCED: Final = re.compile(r"^( *)(`{3,}).*?^\1\2\s*?$", re.MULTILINE | re.DOTALL)
_NAMED: Final = re.compile(r"`((?:penstock|kubectl)\s[^`]+)`")
WHOLE: Final = "docs/runbooks/"
"""There, commands in the text are to be typed as they stand."""


def problems(snippets: Sequence[Snippet], root: Path) -> list[str]:
    """Of one page, in its order. `root`: of the repository, where tests are looked for."""
    found = []
    before: Snippet | None = None
    for snippet in snippets:
        found += [f"{snippet.place}: {one}" for one in _problems(snippet, before, root)]
        before = snippet
    return found


def named_problems(text: str, page: str) -> list[str]:
    """Of the commands of ours and of kubectl that the text of a page names outside its snippets."""
    outside = _FENCED.sub(lambda fence: "\n" * fence[0].count("\n"), text)
    found = []
    for named in _NAMED.finditer(outside):
        command = " ".join(named[1].split())
        if problem := commands.problem_of_named(command, whole=page.startswith(WHOLE)):
            line = outside.count("\n", 0, named.start()) + 1
            found.append(f"{page}:{line}: {command}: {problem}")
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
