"""What `help()` and the reference say: settings by name, and the sync clients' texts in full.

    AsyncProducer.send.__doc__ ──┐
    ProducerConfig's attributes ─┴─▶ help(Producer), help(Producer.send), the reference on the site

What a setting means is written once, at its dataclass; what a call means, at the async client: its
arguments, its errors, what to do then. A sync method gets that text in place of its own, which is a
summary for readers of the code. Only an own text of several paragraphs stays: there the two differ.
Whatever takes a client's settings shows them by name in place of `**options`.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T", bound=type)
Documented = TypeVar("Documented", bound=Callable[..., Any])
_ASYNC = re.compile(r"\bAsync(?=[A-Z])|\basync (?=with\b)")


def facade(core: type, config: type | None = None) -> Callable[[T], T]:
    """Decorates the sync client of `core`; `config`: the dataclass of its settings."""

    def documented(client: T) -> T:
        for name, member in vars(client).items():
            function = member.fget if isinstance(member, property) else member
            if inspect.isfunction(function) and (name == "__init__" or not name.startswith("_")):
                _document(function, getattr(core, name, None))
        return client if config is None else with_settings(config)(client)

    return documented


def with_settings(config: Any) -> Callable[[Documented], Documented]:
    """Decorates a client or a function whose `**options` are the fields of the dataclass
    `config`."""

    def documented(thing: Documented) -> Documented:
        _show_settings(thing, config)
        return thing

    return documented


def _document(function: Any, namesake: Any) -> None:
    own, theirs = function.__doc__ or "", inspect.getdoc(namesake) or ""
    if theirs and ("\n\n" not in inspect.cleandoc(own) or _ASYNC.search(own)):
        function.__doc__ = _ASYNC.sub("", theirs)


def _show_settings(thing: Any, config: Any) -> None:
    sections = [
        text.partition("Attributes:\n")[2].rstrip()
        for kind in reversed(config.__mro__)
        if dataclasses.is_dataclass(kind) and (text := inspect.getdoc(kind))
    ]
    settings = "\n".join(section for section in sections if section)
    own = inspect.getdoc(thing)
    thing.__doc__ = (
        f"{own}\n\nSettings, by keyword or as one `config` ({config.__name__}):\n\n"
        f"Attributes:\n{_ASYNC.sub('', settings)}"
    )
    made: Any = thing.__init__ if inspect.isclass(thing) else thing
    signature = inspect.signature(made)
    fixed = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    by_name = [
        inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type
        )
        for each in dataclasses.fields(config)
    ]
    made.__signature__ = signature.replace(parameters=[*fixed, *by_name])
