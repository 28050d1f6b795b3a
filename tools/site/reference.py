"""Pages written from code and schemas: the Python client, error codes, the chart's values."""

import dataclasses
import enum
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import penstock.client
from penstock.errors import TRAITS, ErrorCode, Lost

CLIENT_INTRODUCTION: Final = """# Python client

`from penstock.client import …`. Every client exists twice: `Producer` for ordinary code and
`AsyncProducer` for asyncio, with the same arguments, meanings and errors.
"""
ERRORS_INTRODUCTION: Final = """# Error codes

What a caller may conclude from each code. **Applied: no** means that the request has no effect and
never will; **maybe** that it may have had one. **Retry** means that the same request may succeed
later: clients do so by themselves within their timeouts. **Look up** means that the leader or
coordinator must be looked up again first.
"""
CHART_INTRODUCTION: Final = """# Chart values

`helm show values charts/penstock` prints the defaults. Helm refuses unknown or invalid values.
"""
_FIRST: Final = ("Producer", "Consumer", "Admin", "Transformer", "WorkerPool", "Branches")


def reference_pages(root: Path) -> dict[str, str]:
    """Path of the page → Markdown."""
    return {
        "reference/python.md": "\n".join(_client()),
        "reference/errors.md": "\n".join(_errors()),
        "reference/chart-values.md": "\n".join(_chart(root)),
    }


def _errors() -> Iterator[str]:
    yield ERRORS_INTRODUCTION
    yield "| number | code | applied | retry | look up | also lost |"
    yield "|---|---|---|---|---|---|"
    for code in ErrorCode:
        traits = TRAITS[code]
        lost = "" if traits.lost is Lost.NOTHING else traits.lost.name.lower()
        yield (
            f"| {code.value} | `{code.name}` | {traits.applied.name.lower()} "
            f"| {'yes' if traits.retriable else ''} "
            f"| {'yes' if traits.refresh_metadata else ''} | {lost} |"
        )
    yield "\nFrom 1000 on, only a client sees the condition; no server sends it.\n"


def _client() -> Iterator[str]:
    yield CLIENT_INTRODUCTION
    names = [name for name in penstock.client.__all__ if inspect.isclass(_named(name))]
    for name in sorted(names, key=_rank):
        yield from _class(name, _named(name))


def _named(name: str) -> Any:
    return getattr(penstock.client, name)


def _rank(name: str) -> tuple[int, str]:
    return (_FIRST.index(name) if name in _FIRST else len(_FIRST), name)


def _class(name: str, kind: type) -> Iterator[str]:
    yield f"## {name}\n"
    yield from _docstring(kind)
    if issubclass(kind, enum.Enum):
        yield from (f"- `{member.name}`" for member in kind)
        yield ""
        return
    if dataclasses.is_dataclass(kind):
        yield from _fields(kind)
    for member, value in sorted(vars(kind).items()):
        function = value.fget if isinstance(value, property) else value
        function = getattr(function, "__func__", function)
        if member.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        shown = "" if isinstance(value, property) else _signature(function)
        yield f"### `{name}.{member}`\n"
        if shown:
            yield f"```python\n{member}{shown}\n```\n"
        yield from _docstring(function)


def _signature(function: Any) -> str:
    signature = inspect.signature(function)
    kept = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    text = str(signature.replace(parameters=kept))
    return re.sub(r"\b(?:[a-z_]+\.)+([A-Z]\w+)", r"\1", text)


def _fields(kind: Any) -> Iterator[str]:
    rows = [each for each in dataclasses.fields(kind) if not each.name.startswith("_")]
    if not rows:
        return
    yield from ("| field | type | default |", "|---|---|---|")
    for row in rows:
        default = "" if row.default is dataclasses.MISSING else f"`{row.default!r}`"
        kind_name = row.type if isinstance(row.type, str) else inspect.formatannotation(row.type)
        shown = re.sub(r"\b(?:[a-z_]+\.)+([A-Z]\w+)", r"\1", kind_name)
        yield f"| `{row.name}` | `{shown.replace('|', chr(92) + '|')}` | {_cell(default)} |"
    yield ""


def _docstring(thing: Any) -> Iterator[str]:
    """Sections such as "Attributes:" become lists."""
    listing = False
    for line in inspect.cleandoc(thing.__doc__ or "").split("\n"):
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


def _chart(root: Path) -> Iterator[str]:
    schema = json.loads((root / "charts/penstock/values.schema.json").read_text())
    yield CHART_INTRODUCTION
    yield from ("| value | type | meaning |", "|---|---|---|")
    yield from _values(schema["properties"], "")


def _values(properties: dict[str, Any], path: str) -> Iterator[str]:
    for name, field in properties.items():
        kind = field.get("type", "")
        choices = ", ".join(f"`{each}`" for each in field.get("enum", ()))
        shown = " or ".join(kind) if isinstance(kind, list) else kind
        text = " ".join(filter(None, [field.get("description", ""), choices]))
        yield f"| `{path}{name}` | {shown} | {_cell(text)} |"
        yield from _values(field.get("properties", {}), f"{path}{name}.")
