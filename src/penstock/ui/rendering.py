"""From values to HTML: the templates, and what every page has around its content."""

from datetime import UTC, datetime
from time import time_ns
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from penstock.views import cells


class Rendering:
    """Renders templates. `cluster`: the name on top, as the user gave it."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._templates = Environment(
            loader=PackageLoader("penstock.ui"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters["iso"] = _iso

    def page(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        """`values`: what the template shows; what most pages lack has a default. `now`: as of when
        it counts, if that is before this moment."""
        defaults: dict[str, Any] = {
            "problems": [], "facts": (), "tables": (), "pager": None, "search": None,
            "internal": None, "kind": "", "why": None,
        }  # fmt: skip
        path = request.url.path
        url = f"{path}?{request.url.query}" if request.url.query else path
        html = self._templates.get_template(template).render(
            {
                **defaults,
                "cluster": self._cluster,
                "section": path.split("/")[1],
                "url": url,
                "now": cells.moment(time_ns() // 1_000_000),
                **values,
            }
        )
        return HTMLResponse(html, status)

    def plain(
        self, request: Request, title: str, text: str, status: int, *, outside: bool = False
    ) -> Response:
        """A page without data. `outside`: for somebody who is not let in, who sees no names."""
        shown = {"cluster": ""} if outside else {}
        return self.page(request, "plain.html", status, title=title, text=text, **shown)

    def missing(self, request: Request, problem: str) -> Response:
        """What the page is about is not there, as `problem` says."""
        return self.plain(request, "This cannot be shown", problem, 404)


def _iso(time_ms: int) -> str:
    """UTC; a time that no calendar has is shown as the number it is."""
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
