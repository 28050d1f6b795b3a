"""Wrong usage in one line: which option or argument, the value seen, what it must be.

    typer, pydantic ─ raise ─▶ describe ─▶ `penstock: --partition is 'a'; it must be a whole number`

The libraries' own texts name their classes and differ from release to release; here only kinds of
mistakes are told apart. What is not known is printed as the library says it.

What the commands themselves, the client and the core find wrong with what was typed is a
`WrongUsageError`: typer's mistakes and these end the program with 2, all else with 1.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from penstock.errors import ErrorCode, MisuseError

_NUMBER: Final = "a whole number"
_WANTED: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "int_parsing": lambda _: _NUMBER,
    "int_parsing_size": lambda _: "a smaller number",
    "int_type": lambda _: _NUMBER,
    "int_from_float": lambda _: _NUMBER,
    "float_parsing": lambda _: "a number",
    "float_type": lambda _: "a number",
    "bool_parsing": lambda _: "true or false",
    "greater_than_equal": lambda limits: f"{limits['ge']} or more",
    "less_than_equal": lambda limits: f"{limits['le']} or less",
    "greater_than": lambda limits: f"more than {limits['gt']}",
    "less_than": lambda limits: f"less than {limits['lt']}",
}
"""By pydantic's type of an error, what it must be. The limits are those of the option."""
_CHOICES: Final = re.compile(r"'.*' is not one of (?P<choices>'.*')\.?", re.DOTALL)
_COMMAND: Final = re.compile(r"No such command '(?P<name>.*?)'\.(?P<rest>.*)", re.DOTALL)
_EXTRA: Final = re.compile(r"Got unexpected extra argument\(?s?\)? \((?P<words>.*)\)", re.DOTALL)


class WrongUsageError(MisuseError):
    """What was typed cannot be right, whatever the cluster and the files are: exit code 2."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorCode.INVALID_REQUEST)


@contextmanager
def typed() -> Iterator[None]:
    """Round a check of what was typed by the client or the core: turns its MisuseError into a
    WrongUsageError. Not round requests: what a cluster says depends on the cluster."""
    try:
        yield
    except MisuseError as error:
        raise WrongUsageError(error.message) from None


def is_help(error: Any) -> bool:
    """Whether its message is the help of a group of commands, of which none was named."""
    return type(error).__name__ == "NoArgsIsHelpError"


def describe(error: Any) -> str:
    """Of a typer exception about usage; without "penstock: "."""
    name = _name(error)
    kind = type(error).__name__
    if kind == "MissingParameter":
        return f"{name} is missing{_help(error)}"
    if kind == "NoSuchOption":
        if before := _of_the_program(error):
            return f"{error.option_name} goes before the command: {before}"
        near = sorted(error.possibilities or ())
        return f"there is no option {error.option_name}{_meant(near, error)}"
    if kind == "BadOptionUsage":
        return f"{error.option_name} needs a value{_help(error)}"
    if kind == "BadParameter" and name:
        return _about_value(name, error)
    return _about_words(error)


def _about_value(name: str, error: Any) -> str:
    for found in _found(error.__cause__):
        seen, limits = found.get("input"), found.get("ctx") or {}
        if wanted := _WANTED.get(str(found.get("type"))):
            return f"{name} is {seen!r}; it must be {wanted(limits)}"
        text = str(limits.get("error") or "")
        if choices := _CHOICES.fullmatch(text):
            *first, last = re.findall(r"'(.*?)'", choices["choices"])
            listed = f"{', '.join(first)} or {last}" if first else last
            return f"{name} is {seen!r}; it must be {listed}"
    text = error.message.removeprefix("Value error, ").rstrip(".")
    if text.startswith("it is "):
        return f"{name}{text.removeprefix('it')}"
    return f"{name}: {text}"


def _found(cause: object) -> list[Mapping[str, Any]]:
    """The details of a pydantic ValidationError, which is not imported for this."""
    errors = getattr(cause, "errors", None)
    return list(errors()) if callable(errors) else []


def _about_words(error: Any) -> str:
    message = error.format_message()
    if found := _COMMAND.fullmatch(message):
        near = re.findall(r"'(.*?)'", found["rest"])
        return f"there is no command {found['name']}{_meant(near, error)}"
    if found := _EXTRA.fullmatch(message):
        return f"nothing may follow here, but {found['words']} does{_help(error)}"
    return f"{message[:1].lower()}{message[1:]}".rstrip(".") + _help(error)


def _name(error: Any) -> str:
    """As a user writes it: the long form of an option, the placeholder of an argument."""
    parameter = getattr(error, "param", None)
    if parameter is None:
        return ""
    if parameter.param_type_name == "option":
        return max(parameter.opts, key=len, default="")
    name = str(parameter.metavar or parameter.name.upper())
    return name[1:-1] if name[0] in "{[" else name


def _meant(near: list[str], error: Any) -> str:
    return f"; did you mean {' or '.join(near)}?" if near else _help(error)


def _of_the_program(error: Any) -> str:
    """How it is typed, if it is an option of all commands, as `-n` behind one; else ""."""
    context: Any = getattr(error, "ctx", None)
    root: Any = None if context is None else context.find_root()
    if root is context:
        return ""
    for one in root.command.params:
        if error.option_name in one.opts:
            value = "" if one.is_flag else " …"
            rest = context.command_path.removeprefix(root.command_path)
            return f"{root.command_path} {error.option_name}{value}{rest}"
    return ""


def _help(error: Any) -> str:
    context = getattr(error, "ctx", None)
    return f"; see `{context.command_path} --help`" if context is not None else ""
