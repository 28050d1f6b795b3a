"""Which part of a long list a page shows, and the links to the parts around it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlencode

from starlette.requests import Request

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pager:
    """Which part of a list is shown: rows [first, first + size) of `total`."""

    first: int
    size: int
    total: int
    path: str
    query: Mapping[str, str]

    @property
    def text(self) -> str:
        last = min(self.first + self.size, self.total)
        return f"{self.first + 1:,} to {last:,} of {self.total:,}"

    @property
    def needed(self) -> bool:
        return self.total > self.size

    @property
    def before(self) -> str:
        return self._href(self.first // self.size) if self.first else ""

    @property
    def after(self) -> str:
        last = self.first + self.size >= self.total
        return "" if last else self._href(self.first // self.size + 2)

    def _href(self, page: int) -> str:
        return f"{self.path}?{urlencode({**self.query, 'page': page})}"


def page_of(
    request: Request, rows: Sequence[T], size: int, query: Mapping[str, str]
) -> tuple[Sequence[T], Pager]:
    """The rows of the wanted page; the last one for a page that does not exist."""
    text = request.query_params.get("page", "1")
    wanted = int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 1
    last = max(1, -(-len(rows) // size))
    first = (min(max(wanted, 1), last) - 1) * size
    return rows[first : first + size], Pager(first, size, len(rows), request.url.path, query)
