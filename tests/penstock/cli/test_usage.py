"""Wrong usage is one line of our own words, whatever the libraries below say."""

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final, get_args, get_origin

import pytest
import typer
from support.command_tree import command_tree, leaves

from penstock.cli.main import app
from penstock.core.authorization.checks import PRINCIPAL_FORMS

FILE = __file__
FOLDER = str(Path(__file__).parent)
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
        ("topic list -n prod", "-n goes before the command: penstock -n … topic list"),
        ("topic list --debug", "--debug goes before the command: penstock --debug topic list"),
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
        (
            ["import", "--from", "kafka://b:x", "--topics", "t"],
            "bootstrap address 'b:x' is not host:port with a port from 1 to 65535",
        ),
        (
            ["acl", "allow", "ada", "read", "--topic", "t"],
            f"principal 'ada' is not one; write {PRINCIPAL_FORMS}",
        ),
        (["status", "a:9092"], "CLUSTER is 'a:9092', an address: give it by --bootstrap"),
        (["scrub", "start", ""], "TOPIC[/PARTITION] is empty (an unset variable?)"),
    ],
    ids=[
        "empty option",
        "file",
        "argument",
        "not any cluster",
        "port",
        "principal",
        "address",
        "everything",
    ],
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
    "moment_ms": "milliseconds since 1970, or ISO 8601 no earlier, such as 2013-06-01T12:00",
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


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home without clusters; the cluster that commands would talk to does not answer."""
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", "127.0.0.1:1")


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


def name_of(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    return str(max(parameter.opts, key=len))


# What commands check themselves: texts, and options that do not go together.
LONG: Final = "n" * 250
WRONG_TEXTS: Final[tuple[tuple[str, list[str], str], ...]] = (
    ("acl allow PRINCIPAL", ["acl", "allow", "ada", "read", "-t", "t"], "principal 'ada' is not"),
    ("acl allow OPERATION…", ["acl", "allow", "cert:ada", "fly", "-t", "t"], "no operation"),
    ("acl can-i KIND", ["acl", "can-i", "read", "box", "t"], "'box' is none of topic, group"),
    ("acl can-i NAME", ["acl", "can-i", "read", "topic", ""], "give a name"),
    ("acl can-i --as", ["acl", "can-i", "read", "topic", "t", "--as", ""], "--as is empty"),
    ("acl can-i OPERATION", ["acl", "can-i", "fly", "topic", "t"], "'fly' is no operation"),
    ("consume --delimiter", ["consume", "t", "-D", r"\q"], r"\q means nothing"),
    ("consume --format", ["consume", "t", "-f", "%q"], "--format has '%q' at position 0"),
    ("consume --grep", ["consume", "t", "--grep", "("], "--grep is '('"),
    ("consume --group", ["consume", "t", "-g", LONG], "at most 249 characters"),
    ("consume --key-delimiter", ["consume", "t", "-K", "", "--output", "json"], "leave out"),
    ("consume --null", ["consume", "t", "-Z", "", "--output", "json"], "leave out"),
    ("consume --offset", ["consume", "t", "-o", "soon"], "--offset is 'soon'; it must be"),
    ("consume --to", ["consume", "t", "--to", "@soon"], "--to has the time 'soon'; it must be"),
    ("drain --node", ["drain", "air", "--node", "a", "--broker", "1"], "--node or --broker"),
    ("export --to", ["export", "--to", "b:1", "--topics", "t"], "it must be kafka://HOST:PORT"),
    ("export --topics", ["export", "--to", "kafka://b:1", "--topics", ","], "--topics is empty"),
    ("elect [TOPIC[/PARTITION]]…", ["elect", "t/x"], "'t/x' must be TOPIC or TOPIC/PARTITION"),
    ("group delete GROUP", ["group", "delete", LONG], "at most 249 characters"),
    ("group describe GROUP", ["group", "describe", "a\nb"], "it must be printable text"),
    ("group offsets GROUP", ["group", "offsets", ""], "GROUP is empty"),
    ("group reset --topic", ["group", "reset", "g", "--to-latest", "--topic", "t:x"], "'t:x' must"),
    ("group reset --topic", ["group", "reset", "g", "--to-latest", "--topic", "t:"], "'t:' must"),
    ("group reset GROUP", ["group", "reset", ""], "GROUP is empty"),
    ("import --from", ["import", "--from", "b:1", "--topics", "t"], "it must be kafka://HOST:PORT"),
    ("import --topics", ["import", "--from", "kafka://b:1", "--topics", ""], "--topics is empty"),
    ("local certificate USER", ["local", "certificate", "a b"], "'a b' cannot be a user's name"),
    ("local token NAME", ["local", "token", "Ada"], "'Ada' cannot be a name"),
    ("local up --file", ["local", "up", "-f", ""], "--file is empty"),
    ("offsets TOPIC", ["offsets", "a b"], "topic name 'a b'"),
    ("partitions accept-loss --offsets",
     ["partitions", "accept-loss", "t/0", "--offsets", "9-1"], "1 is before 9"),
    ("partitions accept-loss [TOPIC/PARTITION]",
     ["partitions", "accept-loss", "t", "--offsets", "1"], "'t' must be TOPIC/PARTITION"),
    ("partitions cancel TOPIC[/PARTITION]", ["partitions", "cancel", "t/"], "'t/' must be TOPIC"),
    ("partitions move TOPIC/PARTITION",
     ["partitions", "move", "t/9999999999", "--to", "1", "--dry-run"], "must be TOPIC/PARTITION"),
    ("partitions plan --topic", ["partitions", "plan", "--topic", "t"], "go together"),
    ("partitions throttle [BYTES|none|default]", ["partitions", "throttle", "x"], "'x' is no rate"),
    ("perf consume TOPIC", ["perf", "consume", "a b"], "topic name 'a b'"),
    ("perf produce TOPIC", ["perf", "produce", ""], "the topic name is empty"),
    ("produce --delimiter", ["produce", "t", "-D", ""], "--delimiter is empty"),
    ("produce --header", ["produce", "t", "-H", "a"], "--header is 'a'; it must be NAME=VALUE"),
    ("produce --key-delimiter", ["produce", "t", "-K", ""], "--key-delimiter is empty"),
    ("produce TOPIC", ["produce", ".."], "topic name"),
    ("profile set --ca-file",
     ["profile", "set", "p", "--bootstrap", "h:1", "--ca-file", ""], "ca_file is empty"),
    ("profile set --certificate",
     ["profile", "set", "p", "--bootstrap", "h:1", "--cert", "c"], "give both"),
    ("profile set --cluster", ["profile", "set", "p"], "either bootstrap or cluster"),
    ("profile set --context",
     ["profile", "set", "p", "--bootstrap", "h:1", "--context", "c"], "on Kubernetes"),
    ("profile set --key", ["profile", "set", "p", "--bootstrap", "h:1", "--key", "k"], "give both"),
    ("profile set --kubeconfig",
     ["profile", "set", "p", "--cluster", "c", "--kubeconfig", ""], "kubeconfig is empty"),
    ("profile set --namespace",
     ["profile", "set", "p", "--cluster", "c", "-n", ""], "namespace is empty"),
    ("profile set --token-file",
     ["profile", "set", "p", "--cluster", "c", "--token-file", ""], "token_file is empty"),
    ("profile set NAME", ["profile", "set", "a b", "--bootstrap", "h:1"], "cannot be the name of"),
    ("quota set PRINCIPAL", ["quota", "set", "ada", "--streams", "1"], "principal 'ada' is not"),
    ("report [CLUSTER]", ["report", "c", "-f", "f", "--bootstrap", "h:1"], "not both"),
    ("scrub start [TOPIC[/PARTITION]]", ["scrub", "start", "t/x"], "TOPIC or TOPIC/PARTITION"),
    ("status [CLUSTER]", ["status", ""], "CLUSTER is empty"),
    ("topic alter --set", ["topic", "alter", "t", "--set", "a"], "--set is 'a'; it must"),
    ("topic alter TOPIC", ["topic", "alter", "a b", "-p", "1"], "topic name 'a b'"),
    ("topic create --config", ["topic", "create", "t", "-c", "retention.ms=x"], "is 'x'; it must"),
    ("topic create TOPIC", ["topic", "create", "a b"], "topic name 'a b'"),
    ("topic delete TOPIC", ["topic", "delete", "a b", "--yes"], "topic name 'a b'"),
    ("topic describe TOPIC", ["topic", "describe", "a b"], "topic name 'a b'"),
    ("topic trim --before", ["topic", "trim", "t", "--before", "soon"], "--before is 'soon'"),
    ("topic trim TOPIC", ["topic", "trim", "a b", "--before", "end"], "topic name 'a b'"),
    ("txn abort ID", ["txn", "abort", ""], "ID is empty"),
    ("txn describe ID", ["txn", "describe", ""], "ID is empty"),
    ("txn forget-ledger ID", ["txn", "forget-ledger", ""], "ID is empty"),
    ("txn partition TOPIC/PARTITION", ["txn", "partition", "t"], "'t' must be TOPIC/PARTITION"),
)  # fmt: skip
"""Of a parameter: words that cannot be right, whatever the cluster is, and part of what is said."""
ANY_TEXT: Final = frozenset(
    {
        "--as", "--cluster", "--context", "--group-prefix", "--groups", "--key", "--kubeconfig",
        "--namespace", "--null", "--reason", "--topic-id", "--topic-prefix",
        "--transactional-id-prefix", "--unset", "--why",
        "CLUSTER", "PROCESS", "TOPIC…", "[CLUSTER | topic/NAME]", "[CLUSTER]", "[PLAN]",
    }
)  # fmt: skip
"""Names of things that a cluster knows or not, and free texts."""
ANY_TEXT_OF: Final = frozenset(
    {
        "acl revoke PRINCIPAL", "quota remove PRINCIPAL", "profile remove NAME", "profile use NAME",
        "acl list --group", "acl allow --group", "acl revoke --group",
        "acl list --topic", "acl allow --topic", "acl revoke --topic", "log-dirs --topic",
    }
)  # fmt: skip
"""As above, where a parameter of that name has another meaning in another command."""


RIGHT: Final = {
    "acl allow": ["cert:ada", "read", "--topic=t"],
    "acl can-i": ["read", "topic", "t"],
    "acl revoke": ["cert:ada", "--topic=t"],
    "elect": ["--all"],
    "export": ["--to=kafka://b:1", "--topics=t"],
    "group reset": ["g", "--to-latest", "--all-topics"],
    "import": ["--from=kafka://b:1", "--topics=t"],
    "partitions cancel": ["--all"],
    "partitions move": ["t/0", "--to=1"],
    "partitions plan": ["--balance"],
    "quota set": ["cert:ada", "--streams=1"],
    "top": ["--once"],
    "topic alter": ["t", "--partitions=2"],
    "topic trim": ["t", "--before=end"],
    "txn partition": ["t/0"],
}
"""The words of commands that check more than single values, before they ask a cluster."""


@pytest.mark.parametrize(
    ("words", "said"), [(words, said) for _, words, said in WRONG_TEXTS],
    ids=[name for name, _, _ in WRONG_TEXTS],
)  # fmt: skip
def test_texts_that_cannot_be_right_are_wrong_usage(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], nowhere: None
) -> None:
    code, out, err = run(words, capsys, ROOT)
    assert (code, out, len(err.splitlines())) == (2, "", 1), err
    assert said in err


def test_every_text_that_can_be_wrong_is_tried() -> None:
    texts = {
        f"{name} {name_of(one)}": name_of(one)
        for name, command in COMMANDS.items()
        if not name.startswith("verify ")  # it exits with 2 whenever there is no verdict
        for one in command.params
        if kind_of(one) is str and not one.type_descriptor.parameter_info.parser
    }
    tried = {name for name, _, _ in WRONG_TEXTS}
    free = ANY_TEXT_OF | {name for name, last in texts.items() if last in ANY_TEXT}
    addresses = {name for name, last in texts.items() if last == "--bootstrap"}
    assert tried <= set(texts)
    assert set(texts) - free - addresses - tried == set()


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, each in sorted(COMMANDS.items())
        if not name.startswith("verify ") and "--bootstrap" in map(name_of, each.params)
    ],
)
def test_an_address_that_is_none_is_wrong_usage(
    name: str, capsys: pytest.CaptureFixture[str], nowhere: None
) -> None:
    right = RIGHT.get(name) or given(COMMANDS[name].params, None, "")
    words = [*name.split(), "--bootstrap=flights", *right]
    code, out, err = run(words, capsys, ROOT)
    assert (code, out, len(err.splitlines())) == (2, "", 1), err
    assert "'flights' is not host:port" in err


def test_what_a_cluster_or_a_file_decides_is_a_failure(
    capsys: pytest.CaptureFixture[str], nowhere: None
) -> None:
    for words in (
        ["topic", "list"],  # nobody listens there
        ["profile", "use", "there-is-none"],
        ["produce", "t", "--file", "/there/is/none"],
        ["partitions", "move", "--plan", "/there/is/none", "--dry-run"],
    ):
        code, _, err = run(words, capsys, ROOT)
        assert (code, len(err.splitlines())) == (1, 1), err


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
    elif parser == "new_file":
        yield "", f"{name} is empty (an unset variable?)"
        yield FOLDER, f"{name}: {FOLDER} is a directory, not a file"
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
