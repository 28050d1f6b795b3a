"""Wrong usage is one line of our own words, whatever the libraries below say."""

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final, get_args, get_origin

import pytest
import typer
from support.command_tree import command_tree, leaves

from penstock.cli.main import app

FILE = __file__
LIBRARIES = ("pydantic", "typer", "Input should", "Value error", "Invalid value", "Traceback")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("consume t -p a", "--partition is 'a'; it must be a whole number"),
        ("consume t -p 1.5", "--partition is '1.5'; it must be a whole number"),
        ("consume t -p -1", "--partition is '-1'; it must be 0 or more"),
        ("local up --port 99999", "--port is '99999'; it must be 65535 or less"),
        ("topic list -o xml", "--output is 'xml'; it must be table, json or yaml"),
        ("produce t --acks few", "--acks is 'few'; it must be all, leader or none"),
        ("broker describe x", "ID is 'x'; it must be a whole number"),
        ("broker describe", "ID is missing; see `penstock broker describe --help`"),
        ("topic trim t", "--before is missing; see `penstock topic trim --help`"),
        ("consume", "TOPIC… is missing; see `penstock consume --help`"),
        ("consume t -p", "-p needs a value"),
        ("offsets t u", "nothing may follow here, but u does; see `penstock offsets --help`"),
        ("topik", "there is no command topik; did you mean topic or top?"),
        ("topic frobnicate", "there is no command frobnicate; see `penstock topic --help`"),
        ("topic list --outpt json", "there is no option --outpt; did you mean --output?"),
        ("topic list --zzz", "there is no option --zzz; see `penstock topic list --help`"),
        ("--profile", "--profile needs a value"),
        ("verify chek", "there is no command chek; did you mean check?"),
        ("partitions plan --drain 3,x", "--drain is '3,x'; it must be ids of brokers, as 3 or 4,5"),
    ],
)
def test_what_is_wrong_is_one_line(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(words.split(), capsys)
    assert (code, out, err) == (2, "", f"penstock: {said}\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dump-log", "--data-dir", ""], "--data-dir is empty (an unset variable?)"),
        (
            ["dump-log", "--data-dir", __file__],
            f"--data-dir: {__file__} is a file, not a directory",
        ),
        (["group", "describe", ""], "GROUP is empty (an unset variable?)"),
        (["status", ""], "CLUSTER is empty (an unset variable?)"),
        (["scrub", "start", ""], "TOPIC[/PARTITION] is empty (an unset variable?)"),
    ],
    ids=["empty option", "file", "empty argument", "not any cluster", "not everything"],
)
def test_our_own_reasons_name_what_they_are_about(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words, capsys) == (2, "", f"penstock: {said}\n")


ROOT: Final = command_tree()
COMMANDS: Final = dict(leaves(ROOT))
WANTED: Final = {
    "parse_brokers": "ids of brokers, as 3 or 4,5",
    "_bytes": "a number of bytes, as 1048576 or 1Mi",
    "duration_ms": "a duration, as 90s, 1h30m, 2d or PT1H30M",
    "moment_ms": "milliseconds since 1970, or ISO 8601 such as 2013-06-01T12:00",
}
"""By the function that parses an option, what the option must be."""
NUMBERS: Final = {int: "a whole number", float: "a number"}
IN_THE_COMMAND: Final = frozenset(
    {
        "export --kafka-config", "import --kafka-config", "local token --out",
        "partitions move --plan", "produce --file", "report --file", "verify check FILE…",
        "verify run --history",
    }
)  # fmt: skip
"""Files: whether one can be read or written, only the command finds out."""


@pytest.fixture(params=sorted(COMMANDS))
def command(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a command that must not begin."""

    def begin(**_: object) -> None:
        pytest.fail("it took the value")

    name = str(request.param)
    monkeypatch.setattr(COMMANDS[name], "callback", begin)
    return name


def test_every_value_of_the_wrong_kind_is_told_in_our_words(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parameters = COMMANDS[command].params
    for parameter in parameters:
        for value, said in wrong_values(command, parameter):
            words = [*command.split(), *given(parameters, parameter, value)]
            assert run(words, capsys, ROOT) == (2, "", f"penstock: {said}\n"), words


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_takes_what_it_has_without_options(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defaults pass through the parsers of options, too."""
    begun: list[str] = []
    monkeypatch.setattr(COMMANDS[name], "callback", lambda **_: begun.append(name))
    words = [*name.split(), *given(COMMANDS[name].params, None, "")]
    assert (run(words, capsys, ROOT), begun) == ((0, "", ""), [name])


def test_values_of_many_kinds_are_tried() -> None:
    tried = [
        kind_of(one).__name__
        for name, each in COMMANDS.items()
        for one in each.params
        for _ in wrong_values(name, one)
    ]
    assert len(tried) > 150
    assert {"int", "float", "Output", "Path", "Brokers"} <= set(tried)


def kind_of(parameter: Any) -> Any:
    """The type of the value, or of each of several."""
    kind = parameter.type_descriptor.annotation
    return get_args(kind)[0] if get_origin(kind) is list else kind


def name_of(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    return str(max(parameter.opts, key=len))


def given(parameters: list[Any], wrong: Any, value: str) -> list[str]:
    """The words of a command whose only mistake is this value."""
    options, arguments = list[str](), list[str]()
    for each in parameters:
        if not (each.required or each is wrong):
            continue
        text = value if each is wrong else "1" if kind_of(each) is int else "there-is-none"
        if each.param_type_name == "argument":
            arguments.append(text)
        else:
            options.append(f"{name_of(each)}={text}")
    return [*options, "--", *arguments]


def wrong_values(command: str, parameter: Any) -> Iterator[tuple[str, str]]:
    """Values that it cannot have, with what is to be said of each."""
    name, kind = name_of(parameter), kind_of(parameter)
    parser = getattr(parameter.type_descriptor.parameter_info.parser, "__name__", "")
    if parser == "directory":
        yield "", f"{name} is empty (an unset variable?)"
        yield FILE, f"{name}: {FILE} is a file, not a directory"
    elif parser:
        yield "some", f"{name} is 'some'; it must be {WANTED[parser]}"
    elif kind in NUMBERS:
        yield "some", f"{name} is 'some'; it must be {NUMBERS[kind]}"
        if parameter.min is not None:
            under = parameter.min - 1
            yield f"{under}", f"{name} is '{under}'; it must be {kind(parameter.min)} or more"
        if parameter.max is not None:
            over = parameter.max + 1
            yield f"{over}", f"{name} is '{over}'; it must be {kind(parameter.max)} or less"
    elif isinstance(kind, type) and issubclass(kind, Enum):
        *first, last = [str(each.value) for each in kind]
        listed = f"{', '.join(first)} or {last}" if first else last
        yield "some", f"{name} is 'some'; it must be {listed}"
    elif kind is Path:
        assert f"{command} {name}" in IN_THE_COMMAND
    else:
        assert kind in (str, bool), f"what is wrong for {name}, of {kind}?"


def test_a_group_without_a_command_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(["topic"], capsys)
    assert code == 2
    assert err.startswith("Usage: penstock topic")
    assert "trim" in err


def run(
    words: list[str], capsys: pytest.CaptureFixture[str], root: Any = None
) -> tuple[object, str, str]:
    """Exit code, standard output and error."""
    with pytest.raises(SystemExit) as exited:
        (root or typer.main.get_command(app)).main(words, prog_name="penstock")
    seen = capsys.readouterr()
    assert not [one for one in LIBRARIES if one in seen.err]
    return exited.value.code, seen.out, seen.err
