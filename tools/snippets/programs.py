"""The form of a program that is not run: it compiles, and what it takes from us exists.

Names are resolved as far as a page shows them: imports, and objects made of imported classes. A
page may leave out `from penstock.client import …`; then the names of that package are known.
"""

import ast
import importlib
import inspect
import typing
from collections.abc import Iterator
from typing import Any, Final

import penstock.client

OURS: Final = ("penstock", "pyspark_penstock")


def problems(text: str) -> list[str]:
    """What is wrong with the program, one line each."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return [f"line {error.lineno}: {error.msg}"]
    return list(_Program().problems(tree))


class _Program:
    """What the names of a program stand for."""

    def __init__(self) -> None:
        self._names: dict[str, Any] = {
            name: getattr(penstock.client, name) for name in penstock.client.__all__
        }
        self._classes: dict[str, Any] = {}
        """Of variables that hold an object of ours."""

    def problems(self, tree: ast.AST) -> Iterator[str]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from self._import(node)
            elif isinstance(node, ast.ImportFrom):
                yield from self._import_from(node)
            elif isinstance(node, ast.Assign | ast.withitem):
                self._note(node)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                yield from self._call(node)

    def _import(self, node: ast.Import) -> Iterator[str]:
        for alias in node.names:
            if alias.name.partition(".")[0] in OURS and _module(alias.name) is None:
                yield f"there is no module {alias.name}"

    def _import_from(self, node: ast.ImportFrom) -> Iterator[str]:
        name = node.module or ""
        if name.partition(".")[0] not in OURS:
            return
        module = _module(name)
        for alias in node.names:
            known = getattr(module, alias.name, None) or _module(f"{name}.{alias.name}")
            if known is None:
                yield f"{name} has no {alias.name}"
            self._names[alias.asname or alias.name] = known

    def _note(self, node: ast.Assign | ast.withitem) -> None:
        """A variable of a class of ours: `with Consumer(…) as consumer`."""
        made = node.value if isinstance(node, ast.Assign) else node.context_expr
        variable = node.targets[0] if isinstance(node, ast.Assign) else node.optional_vars
        if isinstance(made, ast.Call) and isinstance(variable, ast.Name):
            kind = self._resolved(made.func)
            if isinstance(kind, type):
                self._classes[variable.id] = kind

    def _resolved(self, node: ast.expr) -> Any:
        return self._names.get(node.id) if isinstance(node, ast.Name) else None

    def _call(self, node: ast.Call) -> Iterator[str]:
        called = self._resolved(node.func)
        name = ast.unparse(node.func)
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            kind = self._classes.get(node.func.value.id)
            if kind is not None:
                called = getattr(kind, node.func.attr, None)
                if called is None:
                    yield f"{kind.__name__} has no {node.func.attr}"
        known = None if called is None else _keywords(called)
        if known is None:
            return
        for keyword in node.keywords:
            if keyword.arg is not None and keyword.arg not in known:
                yield f"{name} takes no {keyword.arg}"


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def _keywords(called: Any) -> set[str] | None:
    """The names of arguments; None if any may be given."""
    try:
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):
        return None
    names = {one.name for one in parameters}
    for one in parameters:
        if one.kind is inspect.Parameter.VAR_KEYWORD:
            options = typing.get_args(one.annotation)
            if not options or not typing.is_typeddict(options[0]):
                return None
            names |= set(typing.get_type_hints(options[0]))
    return names
