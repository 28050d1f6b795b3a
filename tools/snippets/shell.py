"""The commands of a shell snippet: their words, without the shell's own.

Enough of the shell for documentation: pipes, lists, loops, substitutions, redirections, comments.
Nothing is expanded: a word with a variable or a substitution in it has `VARIABLE` there.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

VARIABLE: Final = "1"
"""Stands for what is only known at run time: a text and a number."""
_KEYWORDS: Final = frozenset(
    ("do", "done", "then", "fi", "else", "elif", "if", "while", "until", "!", "time", "{", "}")
)
_OPENING: Final = re.compile(r"\$\(([^()]*(?:\([^()]*\)[^()]*)*)\)")
_NAME: Final = re.compile(r"\$(?:\{[^}]*\}|\w+|[?#@*!$])")
_HEREDOC: Final = re.compile(
    r"<<\s*(['\"]?)(?P<end>\w+)\1(?P<rest>.*?)\n.*?^(?P=end)$", re.DOTALL | re.MULTILINE
)
_NUMBERED: Final = re.compile(r"(?<=\s)\d(?=[<>])")
"""The 2 of `2>`."""
_ASSIGNMENT: Final = re.compile(r"\w+=.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Session:
    """A command of a `console` snippet, and what it prints."""

    command: str
    shown: str
    """Empty: the page does not show it."""


def sessions(text: str) -> list[Session]:
    """Of a console: lines that begin with `$ ` (and `> ` after a backslash), and what follows."""
    found: list[Session] = []
    command, shown = "", ""
    continues = False
    for line in text.splitlines():
        if continues:
            command += line.removeprefix("> ") + "\n"
        elif line.startswith("$ "):
            if command:
                found.append(Session(command, shown))
            command, shown = line.removeprefix("$ ") + "\n", ""
        else:
            shown += line + "\n"
            continue
        continues = line.endswith("\\")
    return [*found, Session(command, shown)] if command else found


def script(language: str, text: str) -> str:
    """The commands alone, of any shell snippet."""
    if language != "console":
        return text
    return "".join(session.command for session in sessions(text))


def commands(text: str) -> list[list[str]]:
    """The words of every command, inner ones first. Raises ValueError: a quote does not end."""
    inner: list[str] = []

    def replaced(found: re.Match[str]) -> str:
        inner.append(found[1])
        return VARIABLE

    outer = _HEREDOC.sub(r"\g<rest>", text)
    outer = _OPENING.sub(replaced, outer.replace("\\\n", " "))
    result = [words for each in inner for words in commands(each)]
    return result + [words for words in _simple(_NAME.sub(VARIABLE, outer)) if words]


def _simple(text: str) -> Iterator[list[str]]:
    """Of text without substitutions."""
    text = _NUMBERED.sub("", text)
    lexer = shlex.shlex(text.replace("\n", "\n;\n"), posix=True, punctuation_chars=";&|<>()")
    lexer.whitespace_split = True
    words: list[str] = []
    target = False
    for token in lexer:
        if set(token) <= set(";&|()"):
            yield _command(words)
            words = []
        elif set(token) <= set("<>&"):
            target = True
        elif target:
            target = False
        else:
            words.append(token)
    yield _command(words)


def _command(words: list[str]) -> list[str]:
    """Without what the shell reads itself: loops, conditions, assignments."""
    while words and (words[0] in _KEYWORDS or _ASSIGNMENT.fullmatch(words[0])):
        words = words[1:]
    return [] if words[:1] == ["for"] else words
