"""Mutation testing's own parts: which changes are made, how they are found again."""

import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from tools.mutation.changes import Mutant, mutants_of, sample
from tools.mutation.equivalents import Equivalent, Equivalents
from tools.mutation.matters import TABLE, Step, steps_for
from tools.mutation.trials import MARK, Copy, InterruptedTrialError, TreeFailsError

ROOT = Path(__file__).resolve().parent.parent.parent


def changes(source: str) -> list[tuple[str, str]]:
    return [(mutant.was, mutant.now) for mutant in mutants_of("some.py", source)]


def test_decisions_are_turned_around() -> None:
    found = changes("def f(a, b):\n    if a < b and b:\n        g(a)\n")
    assert found == [
        ("if a < b and b:", "if a < b or b:"),
        ("if a < b and b:", "if a <= b and b:"),
        ("g(a)", "pass"),
        ("g(a)", "g(None)"),
    ]


def test_a_bare_condition_is_negated() -> None:
    assert ("if ready:", "if not (ready):") in changes("if ready:\n    x()\n")


@pytest.mark.parametrize(
    "source",
    [
        "_log.warning('lost', extra={'n': 1})\n",
        "self._log.info('n=%d', 1)\n",
        "assert a < b, 'a is below b'\n",
        "def __repr__(self):\n    return 'x' + 'y'\n",
        "@decorated(1)\ndef f(a: Literal[1]) -> None: ...\n",
        "Place = tuple[int, str] | None\n",
        "__all__ = ['a']\n",
        "from a import b\n",
        "Epoch = NewType('Epoch', int)\n",
        "raise LookupError('no such thing')\n",
        "match a:\n    case 1:\n        x\n    case _:\n        assert_never(a)\n",
    ],
)
def test_wording_and_assertions_are_left_alone(source: str) -> None:
    kept = [change for change in changes(source) if "case" not in change[0]]
    assert kept == []


def test_a_mutant_is_known_by_its_lines_and_not_by_their_number() -> None:
    source = "class A:\n    def f(self):\n        return 1\n"
    (here,) = mutants_of("some.py", source)
    (there,) = mutants_of("some.py", "\n\n" + source)
    assert here.key == there.key == ("some.py", "A.f", "return 1", "return 2")
    assert there.line == here.line + 2
    known = Equivalents(
        [Equivalent(path="some.py", scope="A.f", was="return 1", now="return 2", why="nobody asks")]
    )
    assert known.why(there) == "nobody asks"


def test_an_entry_whose_line_is_gone_is_stale(tmp_path: Path) -> None:
    (tmp_path / "some.py").write_text("def f():\n    return 3\n")
    gone = Equivalent(path="some.py", scope="f", was="return 1", now="return 2", why="?")
    here = Equivalent(path="some.py", scope="f", was="return 3", now="return 4", why="?")
    parts = Equivalent(path="…", scope="f", was="def …:…return 3", now="pass", why="?")
    other_order = Equivalent(path="…", scope="f", was="return 3…def", now="pass", why="?")
    overlap = Equivalent(path="…", scope="f", was="return…turn 3", now="pass", why="?")
    stale = Equivalents([gone, here, parts, other_order, overlap]).stale(tmp_path)
    assert stale == [gone, other_order, overlap]


def test_the_listed_equivalents_stand_in_the_code() -> None:
    listed = Equivalents.load()
    assert listed.stale(ROOT) == []
    assert all(len(entry.why) > 10 for entry in listed.entries)


def test_a_seed_draws_the_same_sample_again(tmp_path: Path) -> None:
    (tmp_path / "some.py").write_text("x = [1, 2, 3, 4, 5, 6, 7, 8]\n")
    first = sample(tmp_path, ["some.py"], 3, seed=7)
    assert len(first) == 3
    assert sample(tmp_path, ["some.py"], 3, seed=7) == first
    assert sample(tmp_path, ["some.py"], None, seed=7) == list(
        mutants_of("some.py", (tmp_path / "some.py").read_text())
    )


def test_the_longest_row_of_the_table_wins_and_every_row_finds_its_tests() -> None:
    assert steps_for("src/penstock/core/replication/isr.py") != steps_for(
        "src/penstock/core/lag.py"
    )
    with pytest.raises(KeyError, match="add a row"):
        steps_for("tools/crds.py")
    for steps in TABLE.values():
        for step in steps:
            assert step.command(sys.executable, ROOT)


def tree(root: Path) -> Path:
    """A little repository with a product and its test."""
    root.mkdir()
    (root / "src").mkdir()
    (root / "src/some.py").write_text("def f():\n    return 1\n")
    (root / "tests").mkdir()
    (root / "tests/test_some.py").write_text(
        "from some import f\n\ndef test_f() -> None:\n    assert f() == 1\n"
    )
    (root / "tests/test_waits.py").write_text(
        "import subprocess, sys\nfrom some import f\n\n"
        "def test_f() -> None:\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'input()'], start_new_session=True,"
        " stdin=subprocess.PIPE)\n"
        "    if f() != 1:\n        child.wait()\n    child.kill()\n"
    )
    (root / "tools").symlink_to(ROOT / "tools")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


MUTANT = Mutant(
    path="src/some.py", line=2, scope="f", was="return 1", now="return 2",
    text="def f():\n    return 2\n",
)  # fmt: skip


def test_a_trial_notices_and_leaves_the_copy_as_it_was(tmp_path: Path) -> None:
    root = tree(tmp_path / "root")
    copy = Copy(root, tmp_path / "copy", threading.Event())
    (tmp_path / "copy/tools").symlink_to(ROOT / "tools")
    step = Step("unit", ("tests/test_some.py",))
    assert copy.run(step, 300) is None
    verdict = copy.try_out(MUTANT, [step], {step: 60.0})
    assert verdict.by == "unit: tests/test_some.py::test_f"
    assert copy.run(step, 300) is None
    assert (root / "src/some.py").read_text() == "def f():\n    return 1\n"


def processes_of(copy: Copy) -> list[int]:
    return [
        one.pid
        for one in psutil.process_iter()
        if MARK in (found := environment_of(one)) and found[MARK] == str(copy.folder)
    ]


def environment_of(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}


def test_a_mutant_that_hangs_is_noticed_and_nothing_it_started_is_left(tmp_path: Path) -> None:
    copy = Copy(tree(tmp_path / "root"), tmp_path / "copy", threading.Event())
    (tmp_path / "copy/tools").symlink_to(ROOT / "tools")
    (tmp_path / "copy/src/some.py").write_text(MUTANT.text)
    found = copy.run(Step("unit", ("tests/test_waits.py",)), 4)
    assert found == "unit: no end within 4 s"
    assert processes_of(copy) == []


def test_a_trial_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    stop = threading.Event()
    copy = Copy(tree(tmp_path / "root"), tmp_path / "copy", stop)
    (tmp_path / "copy/tools").symlink_to(ROOT / "tools")
    stop.set()
    step = Step("unit", ("tests/test_waits.py",))
    with pytest.raises(InterruptedTrialError):
        copy.try_out(MUTANT, [step], {step: 60.0})
    assert processes_of(copy) == []
    assert (tmp_path / "copy/src/some.py").read_text() == "def f():\n    return 1\n"


def test_tests_that_fail_without_the_mutant_say_nothing_about_it(tmp_path: Path) -> None:
    root = tree(tmp_path / "root")
    (root / "tests/test_some.py").write_text("def test_f() -> None:\n    assert False\n")
    copy = Copy(root, tmp_path / "copy", threading.Event())
    (tmp_path / "copy/tools").symlink_to(ROOT / "tools")
    with pytest.raises(TreeFailsError, match="test_f"):
        copy.try_out(MUTANT, [Step("unit", ("tests/test_some.py",))], {})
