"""The rules of style that no linter knows, checked on every file (CONTRIBUTING.md tells why).

Size limits, charters, docstrings, what must not stand in the repository, and what tests must
not do. A rule that is broken names the file, what was seen and the limit.
"""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE_ROOTS = ("src", "broker_image/src", "operator/src", "demo", "benchmarks", "tools")
GENERATED = "src/penstock/proto/v1/"
MODULE_LINES_MAX = 600
MODULE_LINES_WANTED = 400
FUNCTION_LINES_MAX = 60
PARAMETERS_MAX = 6
COLUMNS_MAX = 100
POSITIONAL_FIELDS_MAX = 4


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def sources() -> list[Path]:
    return [
        path
        for path in tracked()
        if path.suffix == ".py"
        and relative(path).startswith(SOURCE_ROOTS)
        and not relative(path).startswith(GENERATED)
    ]


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def parsed(paths: list[Path]) -> Iterator[tuple[str, ast.Module]]:
    for path in paths:
        yield relative(path), ast.parse(path.read_text())


def test_modules_stay_short() -> None:
    sizes = {relative(path): len(path.read_text().splitlines()) for path in sources()}
    for name, lines in sorted(sizes.items()):
        if lines > MODULE_LINES_WANTED:
            print(
                f"{name}: {lines} lines, {MODULE_LINES_WANTED} wanted: split it when you are there"
            )
    broken = {name: lines for name, lines in sizes.items() if lines > MODULE_LINES_MAX}
    assert not broken, f"more than {MODULE_LINES_MAX} lines: {broken}"


def test_functions_stay_short() -> None:
    broken = [
        f"{name}:{function.lineno} {function.name}: {length} lines"
        for name, tree in parsed(sources())
        for function in functions(tree)
        if (length := (function.end_lineno or 0) - function.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert not broken, f"more than {FUNCTION_LINES_MAX} lines:\n" + "\n".join(broken)


def has_output_option(parameter: ast.arg) -> bool:
    return isinstance(parameter.annotation, ast.Name) and parameter.annotation.id == "OutputOption"


def is_command(name: str, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Typer reads a command's options from its parameters: their number is the user's interface.

    Those are decorated as commands, or are what `cli/` names after the command it registers, or the
    kubectl plugin's, which are registered by a call, and have an option for their output.
    """
    if name.startswith("src/penstock/cli/") and Path(name).stem == function.name:
        return True
    plugin = name == "src/penstock/cli/kube/commands.py"
    if plugin and any(has_output_option(each) for each in function.args.kwonlyargs):
        return True
    return any(
        isinstance(decorator, ast.Call)
        and isinstance(decorator.func, ast.Attribute)
        and decorator.func.attr in ("command", "callback")
        for decorator in function.decorator_list
    )


def test_functions_take_few_parameters() -> None:
    broken = []
    for name, tree in parsed(sources()):
        for function in functions(tree):
            arguments = [*function.args.posonlyargs, *function.args.args]
            count = len([one for one in arguments if one.arg not in ("self", "cls")])
            # Keyword-only options are read by name at the call: a dozen would still be too many.
            options = len(function.args.kwonlyargs)
            too_many = count > PARAMETERS_MAX or count + options > PARAMETERS_MAX + 4
            if too_many and not is_command(name, function):
                broken.append(f"{name}:{function.lineno} {function.name}: {count} + {options}")
    assert not broken, f"more than {PARAMETERS_MAX} parameters:\n" + "\n".join(broken)


def field_names(node: ast.ClassDef) -> list[str]:
    return [
        one.target.id
        for one in node.body
        if isinstance(one, ast.AnnAssign)
        and isinstance(one.target, ast.Name)
        and not ast.unparse(one.annotation).startswith("ClassVar")
    ]


def is_positional_dataclass(node: ast.ClassDef) -> bool:
    """Decorated as a dataclass whose fields may be given by place."""
    for decorator in node.decorator_list:
        call = decorator if isinstance(decorator, ast.Call) else None
        name = ast.unparse(call.func if call else decorator)
        if name in ("dataclass", "dataclasses.dataclass"):
            options = {one.arg: ast.unparse(one.value) for one in call.keywords} if call else {}
            return options.get("kw_only") != "True"
    return False


def test_contracts_are_spoken_by_name() -> None:
    """Five values in a row tell a reader nothing, and two that change places pass mypy."""
    broken = [
        f"{name}:{node.lineno} {node.name}: {len(field_names(node))} fields"
        for name, tree in parsed(sources())
        if "contract" in Path(name).stem.split("_")
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and is_positional_dataclass(node)
        and len(field_names(node)) > POSITIONAL_FIELDS_MAX
    ]
    assert not broken, (
        f"more than {POSITIONAL_FIELDS_MAX} fields and not kw_only=True:\n" + "\n".join(broken)
    )


def test_every_module_says_what_it_is() -> None:
    broken = [
        name
        for name, tree in parsed(sources())
        if len((ast.get_docstring(tree) or "").strip()) < 20
    ]
    assert not broken, f"no docstring: {broken}"


def test_every_package_has_a_charter() -> None:
    broken = [
        name
        for name, tree in parsed(sources())
        if name.endswith("__init__.py")
        and ("to be written" in (text := ast.get_docstring(tree) or "") or len(text) < 40)
    ]
    assert not broken, f"no charter: {broken}"


def test_plain_folders_are_not_packages() -> None:
    forbidden = [ROOT / "operator/__init__.py", *ROOT.glob("tests/**/__init__.py")]
    present = [relative(path) for path in forbidden if path.exists()]
    assert not present, f"these shadow the standard library or break test imports: {present}"
    assert not list((ROOT / "operator").glob("**/test_*.py")), "tests live below tests/"


FORBIDDEN_TEXT = {
    re.compile(r"(files\.pythonhosted|registry\.npmjs|repo1?\.maven|proxy\.golang|pypi\.org)"): (
        "a registry host name: name packages, not places"
    ),
    re.compile(r"(?<![\w.])/(work/(main|shared)|root/|home/\w+/)"): "a path of one machine",
    re.compile(r"<<<<<<< |>>>>>>> "): "a conflict marker",
}


@pytest.mark.parametrize("path", tracked(), ids=relative)
def test_nothing_stands_here_that_must_not(path: Path) -> None:
    if path.name == "test_house_style.py":
        return
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        return
    for pattern, why in FORBIDDEN_TEXT.items():
        found = pattern.search(text)
        assert not found, f"{relative(path)}: {found.group(0)!r} is {why}"


TEXTS = (
    *("src/", "broker_image/", "operator/", "proto/", "examples/"),
    *("docs/", "charts/", "crds/", "README.md"),
    *("benchmarks/", "tools/", "e2e/", "tests/support/", "tests/simulation/"),
)
NOT_WRITTEN_HERE = (
    GENERATED,
    "docs/e2e-results.md",  # keeps titles as they were run
)
STUMBLES = {
    r"\b(is|are|was|were|be|being) away\b": "unavailable, offline, or not running",
    r"\bleave (it|them|this|that|those|these) away\b": "leave it out",
    r"\bno place in a log\b": "not a valid offset",
    r"\b\d+ to \d+ may be\b": "must be 1 to 256",
    r"\bfor dead\b": "considers it dead",
    r"(?<!`.)\b(is|are) awaited\b": "waiting for it",
    r"\bwhat (it|they) (is|are|was|were) told\b": "name what it receives",
    r"\bholds? still\b": "pauses",
    r"\bput out of\b": "removed from",
    r"\bfor want of\b": "because there is no",
    r"\bof no use\b": "useless, or say what to do",
    r"\bso many (seconds|records|times)\b": "this many, or the number",
    r"\bis no (time|text|duration|number|offset)\b": "is not a valid duration",
    r"\banew\b": "again",
    r"\ball the same\b": "nevertheless",
    r"\bhears? of\b": "is told of, gets, or learns",
    r"\brides? along\b": "is written with it",
    r"\bwhat bec(ame|omes?) of\b": "the outcome of, or what happens to",
    r"\bin good order\b": "without an error",
    r"\bby whom\b": "name who does it",
    r"\b(has|have|had) yet to hear\b": "has not stored it yet, or does not know it yet",
    r"\bto be had\b": "available",
    r"\bcannot be had\b": "is not available",
    r"\bwell and good\b|\bof its own accord\b": "by itself",
    r"\bthe picture of\b": "the metadata of, or the view of",
    r"\bworld is another\b|\bis another by now\b": "has changed",
    r"\bnobody's\b": "name what has no owner",
}
"""Phrases that make a native reader stop, and what to write; docs/glossary.md has the words."""


def test_texts_do_not_stumble() -> None:
    broken = []
    for path in tracked():
        name = relative(path)
        if not name.startswith(TEXTS) or name.startswith(NOT_WRITTEN_HERE):
            continue
        if path.suffix not in (".py", ".md", ".yaml", ".tpl", ".txt", ".proto"):
            continue
        text = path.read_text()
        for stumble, instead in STUMBLES.items():
            for found in re.finditer(stumble.replace(" ", r"\s+"), text, re.IGNORECASE):
                line = text.count("\n", 0, found.start()) + 1
                broken.append(f"{name}:{line} {found.group(0)!r}: {instead}")
    assert not broken, "hard to read:\n" + "\n".join(broken)


def test_tests_do_not_sleep() -> None:
    pattern = re.compile(r"\b(time|asyncio)\.sleep\(")
    allowed = "tests/support/"  # wait_until polls a condition with a deadline there
    broken = [
        f"{relative(path)}:{number}"
        for path in tracked()
        if relative(path).startswith("tests/")
        and path.suffix == ".py"
        and not relative(path).startswith(allowed)
        and path.name != "test_house_style.py"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line) and "# polls" not in line
    ]
    assert not broken, f"poll a condition through tests/support instead: {broken}"


def test_decision_records_are_numbered_once() -> None:
    numbers = [path.name[:4] for path in (ROOT / "docs/decisions").glob("[0-9]*.md")]
    twice = sorted({number for number in numbers if numbers.count(number) > 1})
    assert not twice, f"decision numbers used twice: {twice}"
