"""`penstock profile …`, and which cluster a command talks to when there are profiles."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from penstock.cli import profiles
from penstock.cli.connect import WANTED, Wanted
from penstock.cli.kube.choice import KubeChoice
from penstock.cli.main import app
from penstock.cli.profiles import Profile, Profiles
from penstock.errors import MisuseError

if TYPE_CHECKING:
    from .conftest import Program

PRODUCTION = Profile(bootstrap="prod:9092", ca_file="/prod/ca.crt", token_file="/prod/token")
AIR = Profile(cluster="air/flights", context="admin@air")


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of profiles."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "penstock"


def run(*words: str, code: int = 0) -> str:
    done: Any = CliRunner().invoke(app, ["profile", *words])
    assert done.exit_code == code, done.output
    return str(done.output)


def test_profiles_are_made_listed_used_and_removed(config: Path) -> None:
    assert "there are no profiles" in run("list")
    run("set", "prod", "--bootstrap", "prod:9092", "--ca-file", "ca.crt", "--use")
    run("set", "air", "--cluster", "air/flights", "--context", "admin@air")
    assert json.loads(run("list", "-o", "json")) == [
        {"name": "air", "current": False, "address": "Cluster air/flights",
         "context": "admin@air", "files": []},
        {"name": "prod", "current": True, "address": "prod:9092",
         "context": None, "files": ["ca_file"]},
    ]  # fmt: skip
    assert profiles.load().by_name["prod"].ca_file == str(Path("ca.crt").absolute())
    assert (config / "profiles.yaml").stat().st_mode & 0o777 == 0o600
    assert [one.name for one in config.iterdir()] == ["profiles.yaml"], "nothing is left beside it"
    run("use", "air")
    assert profiles.load().current == "air"
    run("remove", "air")
    assert profiles.load() == Profiles({"prod": profiles.load().get("prod")}, None)
    run("use", "prod")
    run("clear")
    assert profiles.load().current is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("use", "nobody"), "there is no profile 'nobody'; known are: none"),
        (("remove", "nobody"), "there is no profile 'nobody'"),
        (("set", "a/b", "--bootstrap", "x:1"), "'a/b' cannot be the name of a profile"),
        (("set", "a"), "it must have either bootstrap or cluster"),
        (("set", "a", "--bootstrap", "x:1", "--cluster", "b"), "either bootstrap or cluster"),
        (("set", "a", "--bootstrap", ""), "its bootstrap is empty"),
        (("set", "a", "--bootstrap", "x"), "bootstrap address 'x' is not host:port"),
        (("set", "a", "--bootstrap", "x:1", "--ca-file", ""), "its ca_file is empty"),
        (("set", "a", "--bootstrap", "x:1", "--context", "c"), "are for a cluster on Kubernetes"),
        (("set", "a", "--bootstrap", "x:1", "--certificate", "c"), "give both"),
    ],
)
def test_wrong_ones_are_refused_and_nothing_is_written(
    words: tuple[str, ...], said: str, config: Path
) -> None:
    assert said in run(*words, code=2 if words[0] == "set" else 1)
    assert not config.exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "profiles.yaml cannot be used"),
        ("- a", "it must have `profiles`"),
        ("profiles: {a: 1}", "profile 'a' must have texts"),
        ("profiles: {a: {bootstrap: 9}}", "profile 'a' must have texts"),
        ("profiles: {a: {bootstrap: x, token: secret}}", "profile 'a' has token"),
        ("profiles: {a: {}}", "it must have either bootstrap or cluster"),
        ("{current: b, profiles: {a: {bootstrap: x}}}", "current is 'b', and there is no such"),
        ("a: " + "x" * profiles.FILE_BYTES_MAX, "larger than"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_what_is_wrong(
    text: str, said: str, config: Path
) -> None:
    config.mkdir()
    (config / "profiles.yaml").write_text(text)
    told = run("list", code=1)
    assert said in told
    assert str(config / "profiles.yaml") in told
    assert run("set", "a", "--bootstrap", "x:1", code=1) == told, "it is not written over"


def test_a_folder_or_binary_in_its_place_is_told_without_python_words(config: Path) -> None:
    file = config / "profiles.yaml"
    file.mkdir(parents=True)
    assert f"profiles in {file} cannot be used: it cannot be read: Is a directory" in run(
        "list", code=1
    )
    file.rmdir()
    file.write_bytes(b"a: \xff")
    assert "it is not UTF-8 text (byte 3)" in run("list", code=1)


def test_a_profile_is_utf_8_whatever_the_locale(config: Path) -> None:
    save = (
        "from penstock.cli.profiles import Profile, Profiles, save; "
        'save(Profiles({"prod": Profile(bootstrap="prod:9092", ca_file="/srv/jos\\xe9/ca.crt")}))'
    )
    latin = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "XDG_CONFIG_HOME": str(config.parent)}
    subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", save], env={**os.environ, **latin}, check=True
    )
    assert profiles.load().get("prod").ca_file == "/srv/josé/ca.crt"


def test_a_file_that_cannot_be_replaced_leaves_nothing_beside_it(config: Path) -> None:
    (config / "profiles.yaml").mkdir(parents=True)
    with pytest.raises(MisuseError, match="cannot be written"):
        profiles.save(Profiles({"prod": PRODUCTION}))
    assert [one.name for one in config.iterdir()] == ["profiles.yaml"]


def test_an_empty_file_has_none(config: Path) -> None:
    config.mkdir()
    (config / "profiles.yaml").write_text("")
    assert profiles.load() == Profiles()


def test_a_named_profile_is_the_cluster_with_its_files() -> None:
    profiles.save(Profiles({"prod": PRODUCTION, "air": AIR}))
    located = Wanted(profile="prod").locate(None)
    assert located.bootstrap == "prod:9092"
    assert located.files == {"ca_file": "/prod/ca.crt", "token_file": "/prod/token"}
    mine = Wanted(profile="prod", files={"ca_file": None, "token_file": "mine"}).locate(None)
    assert mine.files == {"ca_file": "/prod/ca.crt", "token_file": "mine"}
    assert Wanted(profile="prod", is_plugin=True).locate(None).bootstrap == "prod:9092"


def test_the_current_profile_is_for_commands_that_name_no_cluster() -> None:
    profiles.save(Profiles({"prod": PRODUCTION, "air": AIR}, "prod"))
    assert Wanted().locate(None).bootstrap == "prod:9092"
    other = Wanted().locate("test:9092")
    assert (other.bootstrap, other.files) == ("test:9092", {}), "prod's token is not shown to test"


def test_on_kubernetes_a_profile_names_cluster_and_context() -> None:
    profiles.save(Profiles({"prod": PRODUCTION, "air": AIR}, "air"))
    meant = Wanted().on_kubernetes()
    assert (meant.cluster, meant.choice.context) == ("air/flights", "admin@air")
    elsewhere = Wanted(choice=KubeChoice(context="other"))
    assert elsewhere.on_kubernetes() is elsewhere, "the context says which cluster"
    plugin = Wanted(is_plugin=True)
    assert plugin.on_kubernetes() is plugin, "kubectl's context says which cluster"
    named = Wanted(profile="air", choice=KubeChoice(kubeconfig="k"), is_plugin=True).on_kubernetes()
    assert named.choice == KubeChoice(context="admin@air", kubeconfig="k")
    with pytest.raises(MisuseError, match="profile prod names brokers"):
        Wanted(profile="prod").on_kubernetes()
    profiles.save(Profiles({"prod": PRODUCTION}, "prod"))
    nobody = Wanted()
    assert nobody.on_kubernetes() is nobody, "the current profile has no Cluster"


AT_AIR = Profile(cluster="air/flights", namespace="air", context="admin@air", kubeconfig="/k/air")


@pytest.mark.parametrize("command", [["hibernate", "x"], ["pause", "x"], ["status"], ["why", "x"]])
@pytest.mark.parametrize(
    ("options", "meant"),
    [
        (["-n", "test"], KubeChoice("test")),
        (["--context", "dev"], KubeChoice(context="dev")),
        (["--kubeconfig", "k"], KubeChoice(kubeconfig="k")),
        (["--profile", "air", "-n", "test"], KubeChoice("test", "admin@air", "/k/air")),
    ],
    ids=lambda value: value[0] + str(len(value)) if isinstance(value, list) else "",
)
def test_options_of_kubernetes_mean_the_same_before_and_after_the_command(
    monkeypatch: pytest.MonkeyPatch, command: list[str], options: list[str], meant: KubeChoice
) -> None:
    """What the current profile says of another Kubernetes is not mixed in."""
    profiles.save(Profiles({"air": AT_AIR}, "air"))
    seen: list[tuple[KubeChoice, str | None]] = []

    def connect(choice: KubeChoice) -> None:
        seen.append((choice, WANTED.get().on_kubernetes().cluster))
        raise MisuseError("seen")

    monkeypatch.setattr("penstock.cli.kube.commands.connect", connect)
    named, given = options[:-2], options[-2:]
    for words in ([*named, *given, *command], [*named, *command, *given]):
        result = CliRunner().invoke(app, words)
        assert "penstock: seen" in result.output, words
    cluster = "air/flights" if named else None
    assert seen == [(meant, cluster)] * 2


@pytest.mark.parametrize("wanted", [Wanted(cluster="b", profile="prod"), Wanted(profile="prod")])
def test_two_clusters_are_not_one(wanted: Wanted) -> None:
    profiles.save(Profiles({"prod": PRODUCTION}))
    with pytest.raises(MisuseError, match="only one of them"):
        wanted.locate(None if wanted.cluster else "x:1")


def test_commands_reach_the_cluster_of_their_profile(penstock: "Program") -> None:
    told = json.loads(penstock.ok("local", "list", "-o", "json"))
    bootstrap = told[0]["bootstrap"]
    penstock.ok("profile", "set", "here", "--bootstrap", bootstrap, "--use")
    penstock.ok("profile", "set", "nowhere", "--bootstrap", "127.0.0.1:1")
    try:
        assert "TOPIC" in penstock.ok("topic", "list")
        assert "127.0.0.1:1" in penstock.fails("--profile", "nowhere", "topic", "list")
        assert "there is no profile 'x'" in penstock.fails("--profile", "x", "topic", "list")
    finally:
        penstock.ok("profile", "clear")
