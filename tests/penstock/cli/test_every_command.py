"""What every command has: an example, output for programs, and a dry run if it changes something.

The tree of commands is walked, so that a new command cannot be without; what has a good reason to
be is listed here.
"""

import inspect
import re
from typing import Any, Final

import pytest
from support.command_tree import command_tree, leaves

CHANGES: Final = frozenset(
    {
        "acl allow", "acl revoke", "approve",
        "broker cordon", "broker drain", "broker drop-orphans", "broker forget", "broker uncordon",
        "cluster finalize",
        "drain", "elect", "export", "group delete", "group reset", "hibernate", "import",
        "local down", "local up",
        "partitions accept-loss", "partitions cancel", "partitions move", "partitions throttle",
        "pause", "profile clear", "profile remove", "profile set", "profile use",
        "quota remove", "quota set",
        "resume", "rotate-ca", "scrub start",
        "topic alter", "topic create", "topic delete", "topic trim",
        "txn abort", "txn forget-ledger", "upgrade", "wake",
    }
)  # fmt: skip
"""Commands that change a cluster, or what later commands do."""
WRITES_RECORDS: Final = frozenset({"consume", "perf consume", "perf produce", "produce"})
"""Clients: what they do to a cluster is what they are for, as is the workload of verify."""
LOOKS: Final = frozenset(
    {
        "access", "acl can-i", "acl list", "broker config", "broker describe", "broker list",
        "cluster describe", "dump-log", "group describe", "group list", "group offsets",
        "local certificate", "local list", "local logs", "local status", "local token",
        "log-dirs", "offsets", "partitions plan", "partitions status", "profile list",
        "quota list", "report", "scrub status", "status", "top", "topic describe", "topic list",
        "txn blocking", "txn describe", "txn ledgers", "txn list", "txn partition", "ui",
        "verify check", "verify run", "version", "why",
    }
)  # fmt: skip
OTHER_DRY_RUN: Final = {"group reset": "--execute"}
"""It shows what it would do unless it is told to do it, as Kafka's does."""
NO_OUTPUT_OPTION: Final = {
    "local logs": "prints what the processes logged, which is JSON already",
    "local token": "prints a token, for a file or a variable",
    "produce": "prints nothing: its exit code says that every record was acknowledged",
    "ui": "is for people; penstock top --once -o json has the same for programs",
}


OTHER_WORDS: Final = {
    "--cluster": {"NAME", "[NS/]NAME"},
    "--key": {"FILE", "KEY"},
    "--offset": {"OFFSET", "PLACE"},
    "--to": {"ID[,ID…]", "FORMAT", "PLACE", "kafka://HOST:PORT[,…]"},
    "--out": {"DIRECTORY", "FILE"},
    "--topic": {"TOPIC", "TOPIC[:P,P…]"},
}
"""Options that mean different things in different commands."""


ROOT: Final = command_tree()
COMMANDS: Final = dict(leaves(ROOT))


def options_of(command: Any) -> set[str]:
    names = [[*one.opts, *one.secondary_opts] for one in command.params]
    return {name for several in names for name in several}


def test_every_command_is_known_to_change_something_or_not() -> None:
    kinds = (CHANGES, WRITES_RECORDS, LOOKS)
    assert set().union(*kinds) == set(COMMANDS)
    assert sum(map(len, kinds)) == len(COMMANDS), "each is in one list"


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_what_changes_something_can_be_tried_before(name: str) -> None:
    assert OTHER_DRY_RUN.get(name, "--dry-run") in options_of(COMMANDS[name])


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_what_asks_can_be_told_not_to(name: str) -> None:
    source = inspect.getsource(inspect.unwrap(COMMANDS[name].callback))
    if "confirm(" in source:
        assert "--yes" in options_of(COMMANDS[name])


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_prints_for_programs_too(name: str) -> None:
    assert ("--output" in options_of(COMMANDS[name])) is (name not in NO_OUTPUT_OPTION)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_an_example_that_it_understands(name: str) -> None:
    command = COMMANDS[name]
    _, found, lines = (command.epilog or "").partition("Example:\n")
    assert found, "there is no example"
    words = f"penstock {name}"
    assert words in lines, f"no example has {words!r}"
    for option in {word for word in lines.split() if word.startswith("--")}:
        assert option.partition("=")[0] in options_of(command), f"{option} is in no option of it"


@pytest.mark.parametrize("name", ["", *sorted(COMMANDS)])
def test_the_help_shows_words_of_things_and_no_types(name: str) -> None:
    command = COMMANDS[name] if name else ROOT
    text = command.get_help(command.context_class(command, info_name=f"penstock {name}"))
    types = r"<(?:str|int|float|bool|path|file|directory|list\[.*|[a-z]+ range)>|INTEGER|FLOAT"
    assert re.findall(types, text) == []
    usage = text.partition("\n\n")[0]
    assert not re.findall(r"[{}]|\[\[", usage)


def test_an_option_means_the_same_kind_of_thing_in_all_commands() -> None:
    words: dict[str, set[str]] = {}
    for command in COMMANDS.values():
        for one in command.params:
            option = max(one.opts, key=len)
            if one.param_type_name == "option" and one.metavar and "|" not in one.metavar:
                words.setdefault(option, set()).add(one.metavar)
    several = {option: found for option, found in words.items() if len(found) > 1}
    assert several == OTHER_WORDS


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_argument_has_a_name_in_capitals_as_its_errors_say_it(name: str) -> None:
    arguments = [one for one in COMMANDS[name].params if one.param_type_name == "argument"]
    for one in arguments:
        assert one.metavar, f"{one.name} would be shown in lower case"
