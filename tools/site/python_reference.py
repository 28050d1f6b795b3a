"""The page of the Python client: every name of `penstock.client`, from signatures and docstrings.

    class     its constructor, its fields, its members
    function  its call
    the rest  what it stands for

A member whose text begins with "Internal" is for other parts of the package, and not on the page.
"""

import dataclasses
import enum
import inspect
import re
from collections.abc import Iterator
from typing import Any, Final

import penstock.client

INTRODUCTION: Final = """# Python client

`from penstock.client import …`. Every client exists twice: `Producer` for ordinary code and
`AsyncProducer` for asyncio, with the same arguments, meanings and errors.
"""
_FIRST: Final = (
    *("Producer", "Consumer", "Admin", "Transformer", "transform", "WorkerPool", "Branches"),
    *("Record", "decode_records"),
)
_ALIASES: Final = {"Header": "Name and value of one header of a record."}
"""An alias of a type has no docstring."""
_LINE: Final = 100


def python_reference() -> str:
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield INTRODUCTION
    for name in sorted(penstock.client.__all__, key=_rank):
        thing = getattr(penstock.client, name)
        yield f"## {name}\n"
        if inspect.isclass(thing):
            yield from _class(name, thing)
        elif inspect.isfunction(thing):
            yield from _function(name, thing)
        else:
            yield f"```python\n{name} = {thing}\n```\n"
            yield from _text_of(_ALIASES.get(name) or inspect.getdoc(thing))


def _rank(name: str) -> tuple[int, str]:
    return (_FIRST.index(name) if name in _FIRST else len(_FIRST), name)


def _class(name: str, kind: type) -> Iterator[str]:
    yield from _text_of(inspect.getdoc(kind))
    if issubclass(kind, enum.Enum):
        yield from (f"- `{member.name}`" for member in kind)
        yield ""
        return
    made = vars(kind).get("__init__")
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        yield from _fields(kind)
    elif made and _is_for_users(made) and not issubclass(kind, BaseException):
        yield f"### `{name}()`\n"
        yield from _function(name, made)
    for member, value in sorted(vars(kind).items()):
        function = value.fget if isinstance(value, property) else value
        function = getattr(function, "__func__", function)
        is_call = member == "__call__" and getattr(kind, "_is_protocol", False)
        if not inspect.isfunction(function) or not (is_call or _is_shown(member, function)):
            continue
        yield f"### `{name}.{member}`\n"
        if isinstance(value, property):
            yield from _text_of(inspect.getdoc(function))
        else:
            yield from _function(member, function)


def _is_shown(member: str, function: Any) -> bool:
    return not member.startswith("_") and not (function.__doc__ or "").startswith("Internal")


def _is_for_users(made: Any) -> bool:
    """False for objects that the package makes, and for a Protocol, whose constructor has no
    text."""
    return bool(made.__doc__) and not made.__doc__.startswith("Made by")


def _function(name: str, function: Any) -> Iterator[str]:
    yield f"```python\n{_call(name, function)}\n```\n"
    yield from _text_of(inspect.getdoc(function))


def _call(name: str, function: Any) -> str:
    """With a line per parameter if it is long."""
    signature = inspect.signature(function)
    kept = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    start = f"async {name}" if inspect.iscoroutinefunction(function) else name
    text = start + _short(str(signature.replace(parameters=kept)))
    if len(text) <= _LINE:
        return text
    inside = str(signature.replace(parameters=[], return_annotation=signature.return_annotation))
    lines = [f"    {_short(each)}," for each in _parameters(kept)]
    return "\n".join([f"{start}(", *lines, _short(inside.removeprefix("("))])


def _parameters(kept: list[inspect.Parameter]) -> Iterator[str]:
    """As a signature shows them, with the star before those that are given by name only."""
    starred = any(each.kind is each.VAR_POSITIONAL for each in kept)
    for each in kept:
        if each.kind is each.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        yield str(each)


def _short(written: str) -> str:
    """Names without their modules, members of enums without their values."""
    written = re.sub(r"<(\w+\.\w+): [^<>]+>", r"\1", written)
    return re.sub(r"\b(?:[a-z_]+\.)+([A-Z]\w+)", r"\1", written)


def _fields(kind: Any) -> Iterator[str]:
    rows = list(_rows(kind))
    if not rows:
        return
    yield from ("| field | type | default |", "|---|---|---|")
    for name, annotation, default in rows:
        written = (
            annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        )
        shown = "" if default is dataclasses.MISSING else f"`{_short(repr(default))}`"
        yield f"| `{name}` | `{_cell(_short(written))}` | {_cell(shown)} |"
    yield ""


def _rows(kind: Any) -> Iterator[tuple[str, Any, Any]]:
    """Name, type and default of the fields of a dataclass or a named tuple."""
    if dataclasses.is_dataclass(kind):
        for each in dataclasses.fields(kind):
            if not each.name.startswith("_"):
                yield each.name, each.type, each.default
        return
    for name in kind._fields:
        default = kind._field_defaults.get(name, dataclasses.MISSING)
        yield name, kind.__annotations__[name], default


def _text_of(docstring: str | None) -> Iterator[str]:
    """Sections such as "Attributes:" become lists."""
    listing = False
    for line in (docstring or "").split("\n"):
        entry = re.match(r"^    (\w+): (.*)$", line)
        if re.match(r"^(Attributes|Args|Returns|Raises|Yields):$", line):
            listing = True
            yield f"\n**{line}**\n"
        elif listing and entry:
            yield f"- `{entry[1]}`: {_text(entry[2])}"
        elif listing and line.startswith("        "):
            yield f"  {_text(line.strip())}"
        else:
            listing = listing and not line
            yield _text(line)
    yield ""


def _text(line: str) -> str:
    return line if line.startswith("    ") else line.replace("<", "&lt;")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
