"""The texts of the sync clients: each method says what its async namesake says, in full.

    AsyncProducer.send.__doc__ ──┐
    ProducerConfig's attributes ─┴─▶ help(Producer), help(Producer.send), the reference on the site

What both mean is written once, at the async client. A method whose own text names its async
namesake, or that has none, gets that text; a client's constructor shows its settings by name in
place of `**options`.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T", bound=type)
_ASYNC = re.compile(r"\bAsync(?=[A-Z])")


def facade(core: type, config: type | None = None) -> Callable[[T], T]:
    """Decorates the sync client of `core`; `config`: the dataclass of its settings."""

    def documented(client: T) -> T:
        for name, member in vars(client).items():
            function = member.fget if isinstance(member, property) else member
            if inspect.isfunction(function) and not name.startswith("_"):
                _document(function, getattr(core, name, None))
        if config is not None:
            _show_settings(client, config)
        return client

    return documented


def _document(function: Any, namesake: Any) -> None:
    own, theirs = function.__doc__ or "", inspect.getdoc(namesake) or ""
    if theirs and (not own or _ASYNC.search(own)):
        function.__doc__ = _ASYNC.sub("", theirs)


def _show_settings(client: Any, config: Any) -> None:
    sections = [
        text.partition("Attributes:\n")[2].rstrip()
        for kind in reversed(config.__mro__)
        if dataclasses.is_dataclass(kind) and (text := inspect.getdoc(kind))
    ]
    settings = "\n".join(section for section in sections if section)
    own = inspect.getdoc(client)
    client.__doc__ = (
        f"{own}\n\nSettings, by keyword or as one `config` ({config.__name__}):\n\n"
        f"Attributes:\n{_ASYNC.sub('', settings)}"
    )
    made = client.__init__
    signature = inspect.signature(made)
    fixed = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    by_name = [
        inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type
        )
        for each in dataclasses.fields(config)
    ]
    made.__signature__ = signature.replace(parameters=[*fixed, *by_name])
