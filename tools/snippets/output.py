"""What a page says that is printed, and what was printed."""

import re
from typing import Final

ANYTHING: Final = "…"


def matches(shown: str, printed: str) -> bool:
    """Whether a page may show `shown` for `printed`.

    `…` stands for any text in a line, and alone in a line for any number of lines. Spaces at the
    ends of lines and empty lines at the end do not count.
    """
    pattern = "".join(_line(line) for line in _lines(shown))
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in _lines(printed))) is not None


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _line(shown: str) -> str:
    if shown.strip() == ANYTHING:
        return r"(?:.*\n)*?"
    return ".*?".join(re.escape(part) for part in shown.split(ANYTHING)) + r"\n"
