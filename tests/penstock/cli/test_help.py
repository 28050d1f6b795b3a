"""Help, version, wrong usage: what `penstock` does without a cluster."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

import penstock.cli.__main__ as beginning
from penstock import __version__
from penstock.cli.main import Elsewhere, app
from penstock.cli.panels import PANELS

ROOT = Path(__file__).resolve().parents[3]
HEAVY = ("grpc", "google.protobuf", "pyarrow", "numpy", "rich", "yaml", "asyncio", "rocksdict")


def commands() -> list[tuple[str, ...]]:
    """Every command and group, as the words after `penstock`."""

    def below(command: object, words: tuple[str, ...]) -> list[tuple[str, ...]]:
        found = [words]
        if not isinstance(command, Elsewhere):
            for name, child in getattr(command, "commands", {}).items():
                found += below(child, (*words, name))
        return found

    return below(typer.main.get_command(app), ())


def penstock(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "COLUMNS": "200", **environment},
    )


def python(program: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )


def without(module: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """`penstock` in an installation that lacks a module."""
    program = (
        f"import runpy, sys\nsys.modules[{module!r}] = None\n"
        f"sys.argv = {['penstock', *words]!r}\n"
        "runpy.run_module('penstock.cli', run_name='__main__', alter_sys=False)\n"
    )
    return python(program)


def test_ctrl_c_before_the_command_line_is_there_ends_it_without_a_traceback() -> None:
    program = (
        "import runpy, sys\n"
        "class Pressed:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'penstock.cli.main': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Pressed())\n"
        "runpy.run_module('penstock.cli', run_name='__main__')\n"
    )
    done = python(program)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_ctrl_c_while_the_tree_of_commands_is_built_ends_it_without_a_traceback() -> None:
    program = (
        "import os, signal, typer.main\n"
        "from penstock.cli.main import main\n"
        "def press(*_): os.kill(os.getpid(), signal.SIGINT)\n"
        "typer.main.get_command = press\n"
        "main(['version'])\n"
    )
    done = python(program)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("words", [("--help",), ("topic", "--help"), ("--version",)], ids=" ".join)
def test_help_that_cannot_be_written_is_one_line(words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "penstock.cli", *words],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "penstock: No space left on device\n")


def test_what_is_printed_is_utf_8_in_every_locale(tmp_path: Path) -> None:
    program = (
        "from penstock.cli import main\nmain.app = lambda **_: print('✔ größer')\nmain.main([])\n"
    )
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"],
        capture_output=True, timeout=60, check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )  # fmt: skip
    assert done.stderr == b""
    assert done.stdout.decode() == "✔ größer\n"


def test_all_commands_are_there() -> None:
    present = {" ".join(words) for words in commands()}
    assert {
        "local up", "local list", "local status", "local down", "local logs", "cluster describe",
        "cluster finalize",
        "topic create", "topic list", "topic describe", "topic alter", "topic delete",
        "txn list", "txn describe", "txn abort", "txn partition", "txn ledgers",
        "txn forget-ledger",
        "group list", "group describe", "group offsets", "group reset", "group delete",
        "partitions plan", "partitions move", "partitions status", "partitions cancel",
        "broker list", "broker describe", "broker cordon", "broker uncordon", "broker drain",
        "local certificate", "topic trim", "status", "why", "version", "elect", "log-dirs",
        "produce", "consume", "offsets", "dump-log", "perf produce", "perf consume", "verify",
        "top", "ui",
    } <= present  # fmt: skip


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_has_help_and_every_leaf_an_example(words: tuple[str, ...]) -> None:
    command: Any = typer.main.get_command(app)
    for word in words:
        command = getattr(command, "commands", {})[word]
    assert getattr(command, "help", None), f"{words} says nothing about itself"
    if not hasattr(command, "commands"):
        assert "Example:\n  penstock " in command.epilog or "| penstock" in command.epilog
        for option in command.params:
            assert getattr(option, "help", "x"), f"{words}: {option.name} says nothing"


def test_every_command_is_in_one_panel_of_the_help() -> None:
    named = [name for names in PANELS.values() for name in names]
    assert sorted(named) == sorted({words[0] for words in commands() if words})


@pytest.mark.parametrize("program", ["penstock", "kubectl-penstock"])
def test_the_help_shows_the_panels_with_their_commands_in_order(program: str) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name(program), "-h"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    text = done.stdout.partition("Show this message and exit.\n\n")[2]
    shown = {
        panel: [line.split()[0] for line in rows]
        for panel, *rows in (block.splitlines() for block in text.strip().split("\n\n"))
    }
    assert shown == {f"{panel}:": list(names) for panel, names in PANELS.items()}


def test_the_help_loads_nothing_heavy() -> None:
    program = (
        "import sys, json\n"
        "from penstock.cli.main import main\n"
        "sys.argv = ['penstock', '--help']\n"
        "try:\n    main()\n"
        "except SystemExit as exit:\n"
        "    print('modules:' + json.dumps([exit.code, sorted(sys.modules)]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    code, modules = json.loads(done.stdout.rpartition("modules:")[2])
    assert code == 0
    assert [name for name in HEAVY if name in modules] == []


def test_help_is_printed_for_a_command() -> None:
    done = penstock("topic", "create", "--help")
    assert done.returncode == 0
    assert "Example:\n    penstock topic create flights" in done.stdout


def test_completion_is_installed_by_the_program_alone() -> None:
    assert "--install-completion" in penstock("--help").stdout
    assert "--install-completion" not in penstock("verify", "--help").stdout


def test_the_version_is_printed() -> None:
    assert penstock("--version").stdout == f"penstock {__version__}\n"


@pytest.mark.parametrize(
    "words", [("local", "up", "-f", "c.yaml"), ("local", "down"), ("dump-log",)], ids=" ".join
)
@pytest.mark.parametrize("given", ["", __file__], ids=["empty", "a file"])
def test_a_data_directory_that_cannot_be_meant_is_wrong_usage(
    words: tuple[str, ...], given: str
) -> None:
    done = penstock(*words, "--data-dir", given)
    assert done.returncode == 2
    assert done.stderr.startswith("penstock: --data-dir")


@pytest.mark.parametrize(
    "words",
    [("topik",), ("topic", "create"), ("consume", "t", "--bogus"), ("consume", "t", "-c", "none")],
    ids=" ".join,
)
def test_wrong_usage_ends_with_2_and_no_traceback(words: tuple[str, ...]) -> None:
    done = penstock(*words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("penstock: ")
    assert len(done.stderr.splitlines()) == 1


def test_an_unknown_place_is_one_line() -> None:
    done = penstock("consume", "t", "-o", "yesterday", "--bootstrap", "127.0.0.1:1")
    assert done.returncode == 2
    assert done.stderr.startswith("penstock: --offset is 'yesterday'; it must be beginning, end")
    assert len(done.stderr.splitlines()) == 1


def test_a_defect_is_one_line_and_debug_shows_the_traceback(tmp_path: Path) -> None:
    # A defect made on purpose: a module of the standard library replaced by one that fails.
    (tmp_path / "penstock_broker").mkdir()
    (tmp_path / "penstock_broker" / "__init__.py").write_text("raise RuntimeError('planted')\n")
    environment = {"PYTHONPATH": str(tmp_path)}
    done = penstock("local", "status", **environment)
    assert done.returncode == 1
    assert done.stderr.startswith("penstock: internal error, RuntimeError: planted;")
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" in penstock("--debug", "local", "status", **environment).stderr


def test_without_the_broker_the_message_says_what_to_install(tmp_path: Path) -> None:
    hide = "import sys\nsys.modules['yaml'] = None\n"
    (tmp_path / "sitecustomize.py").write_text(hide)
    done = penstock("local", "up", "-f", "x.yaml", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "pip install 'penstock[local]'" in done.stderr
    assert "'yaml'" in done.stderr


@pytest.mark.parametrize("words", [(), ("--help",), ("topic", "list")], ids=" ".join)
def test_without_typer_one_line_says_what_to_install(words: tuple[str, ...]) -> None:
    done = without("typer", *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "penstock: the command line needs the module 'typer', which is not installed; "
        "install it with: pip install 'penstock[cli]'\n"
    )


@pytest.mark.parametrize("words", [("--help",), ("run", "--duration", "1")], ids=" ".join)
def test_without_numpy_verify_names_an_extra_that_has_it(words: tuple[str, ...]) -> None:
    done = without("numpy", "verify", *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "penstock: `penstock verify` needs the module 'numpy', which is not installed; "
        "install it with: pip install 'penstock[cli,verify]'\n"
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert any(one.startswith("numpy") for one in extras["verify"])
    assert "verify" in extras["local"][0], "README.md says that local is enough"


def test_a_missing_module_of_penstock_is_a_defect_not_advice() -> None:
    done = without("penstock.cli.topic", "--help")
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr
    assert "pip install" not in done.stderr


def test_both_scripts_begin_where_missing_modules_are_told() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    begin = f"{beginning.__name__}:{beginning.main.__name__}"
    assert scripts == {"penstock": begin, "kubectl-penstock": begin}


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("to", ["top", "topic"]), ("topic de", ["describe", "delete"]), ("verify ch", ["check"])],
)
def test_the_shell_completes_commands(typed: str, offered: list[str]) -> None:
    program = Path(sys.executable).with_name("penstock")
    words = f"penstock {typed}"
    done = subprocess.run(
        [program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={
            **os.environ,
            "_PENSTOCK_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        },
    )
    assert sorted(done.stdout.split()) == sorted(offered)


@pytest.mark.parametrize("typed", ["topic describe f", "group describe g", "topic alter f --set r"])
def test_completion_loads_nothing_heavy(typed: str) -> None:
    """Whoever types waits for it: a name needs grpc, one call of the client, and nothing else that
    takes its time."""
    program = (
        "import sys, json\n"
        "from penstock.cli.main import main\n"
        "sys.argv = ['penstock']\n"
        "try:\n    main()\n"
        "except SystemExit:\n"
        "    sys.stderr.write('modules:' + json.dumps(sorted(sys.modules)))\n"
    )
    words = f"penstock {typed}"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={
            **os.environ,
            "_PENSTOCK_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
            "PENSTOCK_BOOTSTRAP": "127.0.0.1:1",
        },
    )
    modules = json.loads(done.stderr.rpartition("modules:")[2])
    heavy = {
        "kubernetes",
        "pyspark",
        "pyarrow",
        "numpy",
        "pandas",
        "rich",
        "rocksdict",
        "starlette",
        "penstock.client.exported",
        "penstock.client.admin.admin",
        "penstock.client.consumer",
        "penstock.core.control",
    }
    assert heavy.isdisjoint(modules)
    assert ("penstock.client.admin.topic_calls" in modules) is ("topic describe" in typed)
    assert ("penstock.client.admin.group_calls" in modules) is ("group describe" in typed)
    assert "penstock.core.manifest" not in modules
    assert ("grpc" in modules) is ("--set" not in typed)
