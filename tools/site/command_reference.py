"""The page of the command line: every command, its help, options and examples, from the program.

Commands of other packages are imported, as the program does when one is used.
"""

import inspect
import re
from collections.abc import Iterator
from typing import Any, Final

import typer

from penstock.cli.main import Elsewhere, app
from penstock.cli.panels import PANELS

INTRODUCTION: Final = """# Commands

Every command prints this with `--help`. All of them also work as `kubectl penstock …`, which finds
the Cluster on Kubernetes by itself; those that are listed so work only there.

| exit code | |
|---|---|
| 0 | It is done. |
| 1 | It failed: the cluster refused or did not answer. Or what was looked at is not well. |
| 2 | Wrong usage: what was typed cannot be right, whatever the cluster is. |
| 130 | Ctrl-C. |

`penstock verify` exits with 0 for PASS, 1 for FAIL and 2 if there is no verdict. The code counts
even if nobody reads the output to its end, as in `penstock status | head -1`.
"""
_ANSI: Final = re.compile(r"\x1b\[[0-9;]*m|\[/?(?:bold|dim|red|green|yellow|cyan)\]")


def command_pages() -> dict[str, str]:
    """Path of the page → Markdown."""
    program = typer.main.get_command(app)
    commands: Any = getattr(program, "commands", {})
    lines = [INTRODUCTION]
    for panel, names in PANELS.items():
        lines.append(f"## {panel}\n")
        for name in names:
            for path, command in walk(commands[name], ("penstock", name)):
                lines += _section(path, command)
    return {"reference/commands.md": "\n".join(lines)}


def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(command, Elsewhere):
        command = command.load()
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
        return
    for name in sorted(children):
        if not children[name].hidden:
            yield from walk(children[name], (*path, name))


def _section(path: tuple[str, ...], command: Any) -> Iterator[str]:
    if command.callback.__module__.startswith("penstock.cli.kube."):
        path = ("kubectl", *path)
    yield f"### `{' '.join(path)}`\n"
    text = _ANSI.sub("", inspect.cleandoc(command.help or "")).replace("\f", "")
    yield from _paragraphs(text.replace("\b", ""))
    yield f"```\n{_usage(path, command)}\n```\n"
    rows = [_option(each) for each in command.params if not getattr(each, "hidden", False)]
    rows = [row for row in rows if row]
    if rows:
        yield from ("| | |", "|---|---|", *rows, "")
    examples = _examples(command.epilog or "")
    if examples:
        yield "\n".join(["Example:\n", "```sh", *examples, "```\n"])


def _examples(epilog: str) -> list[str]:
    """The lines below "Example:", as `options.example` writes them."""
    return [line.strip() for line in epilog.partition("Example:\n")[2].split("\n") if line.strip()]


def _paragraphs(text: str) -> Iterator[str]:
    """Examples, which are indented or begin with the program's name, keep their lines."""
    for paragraph in re.split(r"\n\s*\n", text):
        lines = paragraph.split("\n")
        if all(line.startswith((" ", "penstock ", "kubectl ", "$ ")) for line in lines if line):
            yield "\n".join(["```", *(line.strip() for line in lines), "```", ""])
        else:
            yield f"{_escaped(' '.join(line.strip() for line in lines))}\n"


def _usage(path: tuple[str, ...], command: Any) -> str:
    arguments = [
        _name(each) if each.required else f"[{_name(each)}]"
        for each in command.params
        if each.param_type_name == "argument"
    ]
    return " ".join([*path, "[OPTIONS]", *arguments])


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper()).strip("[]")


def _option(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = f"`{_name(parameter)}`"
    else:
        names = [*parameter.opts, *parameter.secondary_opts]
        kind = "" if parameter.is_flag else f" {parameter.metavar or parameter.name.upper()}"
        name = ", ".join(f"`{each}{kind}`" for each in sorted(names, key=len))
    text = " ".join((getattr(parameter, "help", None) or "").split())
    return f"| {name.replace('|', chr(92) + '|')} | {_escaped(_ANSI.sub('', text))} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
