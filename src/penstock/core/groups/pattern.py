r"""Subscriptions by pattern: which topic names match, in time linear in their length.

    pattern ──parse──▶ nodes with empty and consuming edges ──▶ sets of nodes, remembered as a DFA

Python's own regular expressions can take exponential time, and a coordinator runs what any client
sends on the loop that serves all clients. So: a small language (literals, `.`, `[a-z]`, `[^…]`,
`( )`, `|`, `*`, `+`, `?`, `\` before any of these), simulated as Thompson did (Regular Expression
Search Algorithm, CACM 1968). A pattern matches whole names, so `^` at its start and `$` at its end
are accepted and change nothing.
"""

from dataclasses import dataclass, field
from typing import Final

from penstock.errors import ClusterError, ErrorCode

PATTERN_MAX_CHARS: Final = 256
_META: Final = frozenset(".[]()|*+?\\^$-{}")
_RESERVED: Final = frozenset("{}^$")
_STATES_MAX: Final = 2_000
_DEPTH_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class _Chars:
    """Characters that one edge consumes: single characters and ranges, or all but those."""

    ranges: tuple[tuple[str, str], ...]
    negated: bool = False

    def has(self, char: str) -> bool:
        return any(low <= char <= high for low, high in self.ranges) != self.negated


_ANY: Final = _Chars((), negated=True)


@dataclass(slots=True)
class _Node:
    """Either `chars` lead to the first of `ways`, or all `ways` are free."""

    chars: _Chars | None = None
    ways: list[int] = field(default_factory=list)


class TopicPattern:
    """A compiled pattern. Raises ClusterError(INVALID_REQUEST) that says what and where."""

    def __init__(self, text: str) -> None:
        self.text = text
        if not 1 <= len(text) <= PATTERN_MAX_CHARS:
            raise _refused(
                text, f"it has {len(text)} characters; it must have 1 to {PATTERN_MAX_CHARS}"
            )
        parser = _Parser(text)
        start, end = parser.whole()
        self._nodes = parser.nodes
        self._end = end
        self._first = self._reach({start})
        self._steps: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def matches(self, name: str) -> bool:
        """Whether the whole name matches."""
        state = self._first
        for char in name:
            state = self._step(state, char)
            if not state:
                return False
        return self._end in state

    def _step(self, state: frozenset[int], char: str) -> frozenset[int]:
        known = self._steps.get((state, char))
        if known is None:
            if len(self._steps) >= _STATES_MAX:
                self._steps.clear()
            known = self._reach(
                {
                    self._nodes[node].ways[0]
                    for node in state
                    if (chars := self._nodes[node].chars) is not None and chars.has(char)
                }
            )
            self._steps[state, char] = known
        return known

    def _reach(self, nodes: set[int]) -> frozenset[int]:
        """These nodes and all that can be reached from them without consuming a character."""
        todo, seen = list(nodes), set(nodes)
        while todo:
            node = self._nodes[todo.pop()]
            if node.chars is None:
                new = [way for way in node.ways if way not in seen]
                seen.update(new)
                todo += new
        return frozenset(seen)


class _Parser:
    """Recursive descent; every method returns (first node, last node) of what it read."""

    def __init__(self, text: str) -> None:
        self.nodes: list[_Node] = []
        self._text = text
        self._at = 0
        self._depth = 0

    def whole(self) -> tuple[int, int]:
        self._at += self._peek() == "^"
        found = self._either()
        self._at += self._text[self._at :] == "$"
        if self._at < len(self._text):
            raise self._wrong(f"{self._text[self._at]!r} has no matching opening bracket")
        return found

    def _either(self) -> tuple[int, int]:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise self._wrong(f"brackets are nested more than {_DEPTH_MAX} deep")
        ways = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            ways.append(self._sequence())
        self._depth -= 1
        first, last = self._node(), self._node()
        for begin, end in ways:
            self.nodes[first].ways.append(begin)
            self.nodes[end].ways.append(last)
        return first, last

    def _sequence(self) -> tuple[int, int]:
        first = last = self._node()
        while self._peek() not in {"", "|", ")"} and self._text[self._at :] != "$":
            begin, end = self._repeated()
            self.nodes[last].ways.append(begin)
            last = end
        return first, last

    def _repeated(self) -> tuple[int, int]:
        begin, end = self._one()
        while (sign := self._peek()) in {"*", "+", "?"}:
            self._at += 1
            first, last = self._node(), self._node()
            self.nodes[first].ways.append(begin)
            self.nodes[end].ways.append(last)
            if sign != "+":
                self.nodes[first].ways.append(last)
            if sign != "?":
                self.nodes[end].ways.append(begin)
            begin, end = first, last
        return begin, end

    def _one(self) -> tuple[int, int]:
        char = self._next()
        if char == "(":
            found = self._either()
            if self._next() != ")":
                raise self._wrong("'(' is not closed")
            return found
        if char == "[":
            return self._consuming(self._chars())
        if char == ".":
            return self._consuming(_ANY)
        if char == "\\":
            char = self._escaped()
        elif char in "*+?":
            raise self._wrong(f"there is nothing before {char!r} to repeat")
        elif char in _RESERVED or char == "]":
            raise self._wrong(
                f"{char!r} is not supported here; write \\{char} for the character itself"
            )
        return self._consuming(_Chars(((char, char),)))

    def _chars(self) -> _Chars:
        negated = self._peek() == "^"
        self._at += negated
        ranges = []
        while (char := self._next()) != "]":
            if not char:
                raise self._wrong("'[' is not closed")
            low = high = self._escaped() if char == "\\" else char
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in {"]", ""}:
                self._at += 1
                high = self._next()
                high = self._escaped() if high == "\\" else high
                if high < low:
                    raise self._wrong(f"the range {low}-{high} is empty")
            ranges.append((low, high))
        if not ranges:
            raise self._wrong("'[]' is empty")
        return _Chars(tuple(ranges), negated)

    def _escaped(self) -> str:
        char = self._next()
        if char not in _META or not char:
            raise self._wrong(f"'\\{char}' is not a known escape: escape only special characters")
        return char

    def _consuming(self, chars: _Chars) -> tuple[int, int]:
        first, last = self._node(), self._node()
        self.nodes[first].chars = chars
        self.nodes[first].ways.append(last)
        return first, last

    def _node(self) -> int:
        self.nodes.append(_Node())
        return len(self.nodes) - 1

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        char = self._peek()
        self._at += bool(char)
        return char

    def _wrong(self, what: str) -> ClusterError:
        return _refused(self._text, f"{what} (before character {self._at + 1})")


def _refused(text: str, what: str) -> ClusterError:
    seen = text if len(text) <= 60 else text[:60] + "…"
    return ClusterError(
        f"subscription pattern {seen!r} is not valid: {what}; it can contain literals, . [ ] ( ) "
        "| * + ? and \\ before any of these; it must match the whole name, so ^ is allowed only at "
        "its start and $ at its end, where they change nothing",
        ErrorCode.INVALID_REQUEST,
    )


def literal_prefix(text: str) -> str:
    """With what every name begins that the pattern matches; "": they have nothing in common.

    Cautious: a pattern with alternatives, or what is not a pattern at all, has no such prefix.
    """
    text = text.removeprefix("^")
    prefix, index = "", 0
    while index < len(text):
        escaped = text[index] == "\\"
        char = text[index + 1 : index + 2] if escaped else text[index]
        if not char or (not escaped and char in _META):
            break
        index += 2 if escaped else 1
        signs = text[index : len(text) - len(text[index:].lstrip("*+?"))]
        if "*" in signs or "?" in signs:
            break  # the character may be missing
        prefix += char
    return "" if "|" in text else prefix
