"""The commands of `penstock`, to be walked: a new one cannot be without what all must have."""

from collections.abc import Iterator
from typing import Any

import typer

from penstock.cli.main import Elsewhere, app


def command_tree() -> Any:
    """A tree of its own, in which groups of other packages are loaded once."""
    root: Any = typer.main.get_command(app)
    for group in root.commands.values():
        if isinstance(group, Elsewhere):
            loaded = group.load()
            vars(group)["load"] = lambda loaded=loaded: loaded
    return root


def leaves(root: Any) -> Iterator[tuple[str, Any]]:
    """Every command that does something, with the words after `penstock`."""

    def below(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        if isinstance(command, Elsewhere):
            command = command.load()
        children = getattr(command, "commands", None)
        if children is None:
            yield " ".join(words), command
        for name, child in (children or {}).items():
            yield from below(child, (*words, name))

    yield from below(root, ())
