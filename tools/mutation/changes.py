"""The changes that mutation testing makes: every mutant of a file, as text.

    source ──libcst──▶ nodes ──operators──▶ (node, instead) ──▶ Mutant: where, was, now, new text

Most operators are mutmut's: other comparison and arithmetic operators, `and` for `or`, numbers plus
one, None for a value or an argument, a missing argument, a missing case. Two are our own, because
code that decides forgets things: a call is left out, and a bare condition is negated.

Some code is not changed at all, because nobody could notice, or everybody would:
  - annotations, decorators, imports, type aliases, `__all__`, `__slots__`: they do not run or they
    break the import;
  - assertions: they hold in every run, so a weaker one behaves the same;
  - log calls, texts in raised errors, `__repr__` and `__str__`, names of tasks: wording;
  - `strict=` of a zip, a case that only says `assert_never`: they are assertions, too;
  - a last `case _: pass`: leaving it out is the same;
  - a literal in other case: one change per text is enough to see whether anyone reads it;
  - a positional argument that is missing: every call would raise TypeError.
"""

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import libcst as cst
from mutmut.mutation.mutators import mutation_operators

_LOGGERS: Final = frozenset({"_log", "_logger", "logger", "log"})
_TYPE_MAKERS: Final = frozenset({"NewType", "TypeVar", "ParamSpec", "cast", "assert_never"})
_NEVER_CHANGED_CALLS: Final = _TYPE_MAKERS | {"len", "isinstance"}
_WORDING_FUNCTIONS: Final = frozenset({"__repr__", "__str__"})
_ASSERTING_OPTIONS: Final = frozenset({"strict", "name"})
_DUNDERS: Final = frozenset({"__all__", "__slots__"})
_SKIPPED: Final = (
    cst.Annotation,
    cst.Decorator,
    cst.Assert,
    cst.Import,
    cst.ImportFrom,
    cst.TypeAlias,
)
_BARE: Final = (cst.Name, cst.Attribute, cst.Call, cst.Await, cst.Subscript, cst.NamedExpr)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change of one file. Its identity is `key`: it survives edits elsewhere in the file."""

    path: str
    """From the root of the repository."""
    line: int
    """Where the change begins, from 1; for the reader only."""
    scope: str
    """Class and function, e.g. `Isr.add`; empty at the level of the module."""
    was: str
    """The changed lines, each stripped, joined by a blank."""
    now: str
    text: str
    """The whole file with the change."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.path, self.scope, self.was, self.now


@dataclass(frozen=True, slots=True)
class _Change:
    scope: str
    node: cst.CSTNode
    instead: cst.CSTNode


def changes_of(source: str) -> tuple[cst.Module, list[_Change]]:
    """All changes of a file's text, in its order; none is carried out yet."""
    module = cst.parse_module(source)
    visitor = _Visitor()
    module.visit(visitor)
    return module, visitor.found


def mutants_of(path: str, source: str) -> Iterator[Mutant]:
    """All mutants of a file that still compile."""
    module, found = changes_of(source)
    for change in found:
        mutant = _mutant(path, source, module, change)
        if mutant is not None:
            yield mutant


def sample(root: Path, paths: Sequence[str], size: int | None, seed: int) -> list[Mutant]:
    """`size` mutants of the files in the order that `seed` draws; None: all, as they stand.

    So what has been tried when somebody stops is a sample, too.
    """
    drawn: list[tuple[str, int]] = []
    parsed = {path: changes_of((root / path).read_text()) for path in paths}
    for path in paths:
        drawn += [(path, number) for number in range(len(parsed[path][1]))]
    order = random.Random(seed).sample(drawn, len(drawn))  # noqa: S311 - to be repeated
    chosen: dict[tuple[str, int], Mutant] = {}
    for path, number in order:
        if size is not None and len(chosen) >= size:
            break
        module, found = parsed[path]
        mutant = _mutant(path, module.code, module, found[number])
        if mutant is not None:
            chosen[path, number] = mutant
    return [chosen[place] for place in (sorted(chosen) if size is None else chosen)]


def in_scopes(root: Path, scopes: Collection[tuple[str, str]]) -> Iterator[Mutant]:
    """All mutants in these scopes (path, class and function)."""
    for path in sorted({path for path, _ in scopes if (root / path).is_file()}):
        module, found = changes_of((root / path).read_text())
        for change in found:
            if (path, change.scope) in scopes:
                mutant = _mutant(path, module.code, module, change)
                if mutant is not None:
                    yield mutant


def count(root: Path, paths: Sequence[str]) -> int:
    """How many changes there are in the files."""
    return sum(len(changes_of((root / path).read_text())[1]) for path in paths)


def _mutant(path: str, source: str, module: cst.Module, change: _Change) -> Mutant | None:
    """None if the change makes no difference, or no program."""
    replaced = module.deep_replace(change.node, change.instead)
    assert isinstance(replaced, cst.Module)
    text = replaced.code
    if text == source:
        return None
    try:
        compile(text, path, "exec")
    except SyntaxError:
        return None
    first, before, after = _difference(source.splitlines(), text.splitlines())
    return Mutant(path=path, line=first + 1, scope=change.scope, was=before, now=after, text=text)


def _difference(old: Sequence[str], new: Sequence[str]) -> tuple[int, str, str]:
    """Index of the first line that differs, the lines that do in the old and the new text."""
    first = 0
    while first < min(len(old), len(new)) and old[first] == new[first]:
        first += 1
    last = 0
    while last < min(len(old), len(new)) - first and old[-1 - last] == new[-1 - last]:
        last += 1
    return first, _joined(old[first : len(old) - last]), _joined(new[first : len(new) - last])


def _joined(lines: Iterable[str]) -> str:
    return " ".join(line.strip() for line in lines)


class _Visitor(cst.CSTVisitor):
    """Collects the changes of a module."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[_Change] = []
        self._scope: list[str] = []
        self._raising = 0

    def on_visit(self, node: cst.CSTNode) -> bool:
        if _is_left_alone(node, at_module_level=not self._scope):
            return False
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            self._scope.append(node.name.value)
        if isinstance(node, cst.Raise):
            self._raising += 1
        for instead in _instead_of(node):
            if not (self._raising and _is_wording(node, instead)):
                self.found.append(_Change(".".join(self._scope), node, instead))
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if isinstance(original_node, cst.FunctionDef | cst.ClassDef) and not _is_left_alone(
            original_node, at_module_level=False
        ):
            self._scope.pop()
        if isinstance(original_node, cst.Raise):
            self._raising -= 1


def _is_left_alone(node: cst.CSTNode, *, at_module_level: bool) -> bool:
    """Neither the node nor what is in it is changed."""
    match node:
        case cst.FunctionDef():
            return node.name.value in _WORDING_FUNCTIONS
        case cst.Call():
            return _called(node) in _NEVER_CHANGED_CALLS or _is_log(node)
        case cst.Expr():
            return isinstance(node.value, cst.BaseString)
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name)), *_]):
            return name in _DUNDERS or (
                at_module_level and not name.isupper() and name[0].isupper()
            )
        case cst.Param():
            return node.default is not None and not isinstance(
                node.default, cst.Name | cst.BaseNumber | cst.BaseString
            )
        case _:
            return isinstance(node, _SKIPPED)


def _instead_of(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    for kind, operator in _OPERATORS:
        if isinstance(node, kind):
            yield from (one for one in operator(node) if not _is_noise(node, one))


def _is_noise(node: cst.CSTNode, instead: cst.CSTNode) -> bool:
    """A change of a name or of an assertion in disguise."""
    match node, instead:
        case cst.SimpleString(), cst.SimpleString():
            return "XX" not in instead.value
        case cst.Call(), cst.Call():
            changed = _changed_argument(node, instead)
            keyword = changed.keyword.value if changed and changed.keyword else ""
            missing = len(instead.args) < len(node.args)
            return keyword in _ASSERTING_OPTIONS or (missing and not keyword)
        case cst.Match(), cst.Match():
            kept = {id(case) for case in instead.cases}
            return any(id(case) not in kept and _does_nothing(case) for case in node.cases)
        case _:
            return False


def _does_nothing(case: cst.MatchCase) -> bool:
    """Unless the code is wrong, or at all."""
    body = _code(case.body).strip()
    return "assert_never" in body or (body == "pass" and _code(case.pattern) == "_")


def _is_wording(node: cst.CSTNode, instead: cst.CSTNode) -> bool:
    """Within a raise: a text, or an argument that is one."""
    if isinstance(node, cst.BaseString):
        return True
    if isinstance(node, cst.Call) and isinstance(instead, cst.Call):
        changed = _changed_argument(node, instead)
        return changed is not None and isinstance(changed.value, cst.BaseString)
    return False


def _changed_argument(node: cst.Call, instead: cst.Call) -> cst.Arg | None:
    kept = {id(arg) for arg in instead.args}
    return next((arg for arg in node.args if id(arg) not in kept), None)


def _called(node: cst.Call) -> str:
    return node.func.value if isinstance(node.func, cst.Name) else ""


def _is_log(node: cst.BaseExpression) -> bool:
    return (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and _code(node.func.value).rpartition(".")[2] in _LOGGERS
    )


def _code(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)


def _leave_out(node: cst.Expr) -> Iterator[cst.CSTNode]:
    """A call whose result nobody uses."""
    value = node.value.expression if isinstance(node.value, cst.Await) else node.value
    if isinstance(value, cst.Call) and not _is_log(value) and _called(value) not in _TYPE_MAKERS:
        yield cst.Pass()


def _negate(node: cst.If | cst.While | cst.CompIf) -> Iterator[cst.CSTNode]:
    """A condition that is no comparison; those have operators of their own."""
    if isinstance(node.test, _BARE):
        test = node.test
        if not test.lpar:
            test = test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        yield node.with_changes(test=cst.UnaryOperation(operator=cst.Not(), expression=test))


_OPERATORS: Final[list[tuple[type, Callable[..., Iterable[cst.CSTNode]]]]] = [
    *mutation_operators,
    (cst.Expr, _leave_out),
    (cst.If, _negate),
    (cst.While, _negate),
    (cst.CompIf, _negate),
]
