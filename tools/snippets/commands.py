"""Commands as a page shows them, held against the programs there are.

Ours are parsed by the program's own parser: commands, options, arguments and their values. Of
kubectl the verb is known, and of what kinds and keys there are (`kubectl.py`); of helm the verb, of
others the name. What we make ourselves (targets of make, Python modules, extras of the package)
must exist.
"""

import contextlib
import importlib
import importlib.util
import io
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import typer
from typer.exceptions import Exit, TyperException

from penstock.cli import usage
from penstock.cli.main import PLUGIN, Elsewhere, app
from tools.snippets import kubectl
from tools.snippets.shell import commands

ROOT: Final = Path(__file__).resolve().parents[2]
HELM: Final = frozenset(("get", "install", "list", "rollback", "status", "uninstall", "upgrade"))
OTHERS: Final = frozenset(
    (
        ".", ":", "cat", "cd", "curl", "cut", "docker", "echo", "eval", "export", "git", "go",
        "grep", "head", "jq", "kill", "kind", "ls", "mkdir", "openssl", "printf", "rm", "seq",
        "sleep", "sort", "tail", "tee", "test", "true", "uniq", "wait", "watch", "wc",
    )
)  # fmt: skip
_ACTS: Final = ("--install-completion", "--show-completion")
"""Options of the program that do something as soon as they are parsed: they are not."""
_ABBREVIATED: Final = frozenset(("MissingParameter", "NoArgsIsHelpError", "BadOptionUsage"))
"""What is wrong with a command of which only the beginning is named."""


def problems(script: str) -> list[str]:
    """What is wrong with the commands of a script, one line each."""
    try:
        found = commands(script)
    except ValueError as error:
        return [f"is no shell: {error}"]
    return [problem for words in found for problem in _problems(words)]


def problem_of_named(command: str, *, whole: bool = False) -> str:
    """What is wrong with a command of ours or of kubectl that a text names; "" if nothing is.

    A text may leave out arguments and options unless it is to be `whole`, and `…` stands for any;
    those it has must exist.
    """
    try:
        program, *words = shlex.split(command.replace("…", ""))
    except ValueError as error:
        return f"is no shell: {error}"
    name, rest = kubectl.verb(words)
    if program == "kubectl" and name != "penstock":
        return kubectl.problem(words)
    program, words = (PLUGIN, rest) if program == "kubectl" else (program, words)
    return wrong_usage(words, program, abbreviated=not whole or "…" in command)


def _problems(words: list[str]) -> Iterator[str]:
    program, *rest = words
    checker = _CHECKERS.get(program.removeprefix(".venv/bin/"))
    problem = ""
    if checker is not None:
        problem = checker(rest)
    elif "/" in program:
        if not (ROOT / program).exists():
            problem = "there is no such file"
    elif program not in OTHERS:
        problem = "this program is not known; tools/snippets/commands.py lists those that are"
    if problem:
        yield f"{' '.join(words)}: {problem}"


def wrong_usage(
    words: Sequence[str], program: str = "penstock", *, abbreviated: bool = False
) -> str:
    """What the program would say of these arguments before it does anything; "" if it would run.

    `abbreviated`: or if it only lacks some.
    """
    if words and words[0] in _ACTS:
        return ""
    command: Any = typer.main.get_command(app)
    name, context, rest = program, None, list(words)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            while True:
                if isinstance(command, Elsewhere):
                    command = command.load()
                context = command.make_context(name, rest, parent=context)
                if not hasattr(command, "commands"):
                    return ""
                left = [*getattr(context, "_protected_args", ()), *context.args]
                name, command, rest = command.resolve_command(context, left)
    except Exit:  # --help, --version
        return ""
    except TyperException as error:
        if abbreviated and type(error).__name__ in _ABBREVIATED:
            return ""
        return "names no command" if usage.is_help(error) else usage.describe(error)


def _kubectl(words: list[str]) -> str:
    name, rest = kubectl.verb(words)
    return wrong_usage(rest, PLUGIN) if name == "penstock" else kubectl.problem(words)


def _helm(words: list[str]) -> str:
    verb, rest = kubectl.verb(words)
    charts = [word for word in rest if word.startswith("charts/")]
    if missing := [chart for chart in charts if not (ROOT / chart / "Chart.yaml").exists()]:
        return f"there is no chart {missing[0]}"
    return "" if verb in HELM else f"helm has no command {verb}"


def _make(words: list[str]) -> str:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    wrong = [word for word in words if "=" not in word and word not in targets]
    return f"make has no target {wrong[0]}" if wrong else ""


def _python(words: list[str]) -> str:
    if words[:1] == ["-m"] and len(words) > 1:
        module = words[1]
        return "" if _exists(module) else f"there is no module {module}"
    files = [word for word in words if "/" in word and word.endswith(".py")]
    wrong = [file for file in files if not (ROOT / file).exists()]
    return f"there is no file {wrong[0]}" if wrong else ""


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _pip(words: list[str]) -> str:
    if words[:1] != ["install"]:
        return "only pip install is known"
    for word in words[1:]:
        found = re.fullmatch(r"penstock(?:\[(?P<extras>[\w,-]+)\])?", word)
        extras = (found["extras"] or "").split(",") if found else []
        for extra in extras:
            if extra and extra not in _extras():
                return f"penstock has no extra {extra}; it has {', '.join(_extras())}"
    return ""


@cache
def _extras() -> tuple[str, ...]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return tuple(project["optional-dependencies"])


_CHECKERS: Final[Mapping[str, Callable[[list[str]], str]]] = {
    "penstock": wrong_usage,
    "kubectl": _kubectl,
    "helm": _helm,
    "make": _make,
    "python": _python,
    "pip": _pip,
}
