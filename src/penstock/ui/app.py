"""The application around the pages: who is let in, and what every answer says to the browser.

request ─▶ Host? ─▶ GET or HEAD? ─▶ cookie? ─▶ page ─▶ headers that forbid everything else
                                      └─▶ /login, /static: without one
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.ui.gate import SESSION_S, Entry, Gate
from penstock.ui.pages import Pages
from penstock.ui.reader import Reader
from penstock.ui.rendering import Rendering

POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Records must stay in no cache, and no page of others may show or read these."""
REFUSALS: Final = {
    Entry.USED: "This link was used before. Each link lets one browser in.",
    Entry.EXPIRED: "This link is too old.",
    Entry.UNKNOWN: "This link is not one of this console.",
}
NEXT_LINK: Final = "The terminal in which the console was started shows a link that works."
Report = Callable[[str, Exception], None]
"""Is told of a page that failed by a defect: its path and the error."""


class Console:
    """Decides about every request before a page sees it."""

    def __init__(self, gate: Gate, rendering: Rendering, cookie: str) -> None:
        """`cookie`: its name, another one for each port: browsers do not tell ports apart."""
        self._gate = gate
        self._rendering = rendering
        self._cookie = cookie

    async def login(self, request: Request) -> Response:
        """The only request that needs no cookie, and gives one."""
        entry, session = self._gate.enter(request.query_params.get("token", ""))
        if entry is not Entry.WELCOME:
            return self._refuse(request, "Not let in", f"{REFUSALS[entry]} {NEXT_LINK}", 403)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(
            self._cookie, session, max_age=int(SESSION_S), httponly=True, samesite="strict"
        )
        return answer

    def refusal(self, request: Request) -> Response | None:
        """None: the request is answered."""
        if not self._gate.accepts_host(request.headers.get("host", "")):
            text = "This console answers to its own address only."
            return self._refuse(request, "Another host", text, 421)
        if request.method not in ("GET", "HEAD"):
            text = "The console shows things and changes none."
            return self._refuse(request, "Read only", text, 405)
        path = request.url.path
        if path == "/login" or path.startswith("/static/"):
            return None
        if not self._gate.knows(request.cookies.get(self._cookie, "")):
            text = f"This browser is not signed in, or its session has ended. {NEXT_LINK}"
            return self._refuse(request, "Not signed in", text, 401)
        return None

    async def not_found(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 404
        return self._refuse(request, "No such page", "The address does not exist.", status)

    async def broken(self, request: Request, error: Exception) -> Response:
        """A defect of the console; `Guarded` reports it."""
        text = f"The console has a defect here ({type(error).__name__}). Its terminal says more."
        return self._refuse(request, "Something broke", text, 500)

    def _refuse(self, request: Request, title: str, text: str, status: int) -> Response:
        return self._rendering.plain(request, title, text, status, outside=True)


class Guarded:
    """The application behind its guard: nothing passes by `Console.refusal`, and every answer has
    HEADERS."""

    def __init__(self, app: ASGIApp, console: Console, report: Report) -> None:
        self._app = app
        self._console = console
        self._report = report

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        assert scope["type"] == "http", "the server is told to speak nothing else"

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = self._console.refusal(Request(scope))
        try:
            await (refusal or self._app)(scope, receive, send_guarded)
        except Exception as error:  # noqa: BLE001 - the page says so already; the terminal must too
            self._report(str(scope["path"]), error)


def make_app(
    console: Console, pages: Pages, reader: Reader, report: Report, begin: Callable[[], object]
) -> Guarded:
    """The whole application. Calls `begin` when the server starts, closes the reader at the end."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        try:
            begin()
            yield
        finally:
            await reader.close()

    app = Starlette(
        routes=[Route("/login", console.login), *pages.routes],
        exception_handlers={HTTPException: console.not_found, Exception: console.broken},
        lifespan=lifespan,
    )
    return Guarded(app, console, report)
