"""Wrong usage is one line of our own words, whatever the libraries below say."""

import pytest
import typer

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


def test_a_group_without_a_command_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(["topic"], capsys)
    assert code == 2
    assert err.startswith("Usage: penstock topic")
    assert "trim" in err


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[object, str, str]:
    """Exit code, standard output and error."""
    with pytest.raises(SystemExit) as exited:
        typer.main.get_command(app).main(words, prog_name="penstock")
    seen = capsys.readouterr()
    assert not [one for one in LIBRARIES if one in seen.err]
    return exited.value.code, seen.out, seen.err
