"""`penstock ui` as a process, and a client that speaks HTTP to it."""

import html
import http.client
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from support.waiting import wait_exit, wait_until

HEADER = dict[str, str]


class Answer:
    """Of one request."""

    def __init__(self, status: int, headers: HEADER, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def text(self) -> str:
        return self.body.decode()


class ConsoleProcess:
    """The console of a cluster, on a free port; ends with the block."""

    def __init__(
        self,
        folder: Path,
        bootstrap: str | None,
        *before: str,
        browser: str | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """`bootstrap`: None = `before`, the options before the command, say which cluster.
        `browser`: a program that is given the page; None = none is."""
        self._log = folder / "console.log"
        self.port = 0
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "penstock.cli", *before, "ui", "--port", "0"),
                    *(() if bootstrap is None else ("--bootstrap", bootstrap)),
                    *(("--no-browser",) if browser is None else ()),
                ],
                stdout=log,
                stderr=log,
                env={**environment, "GRPC_VERBOSITY": "NONE", "BROWSER": browser or ""},
            )
        self._cookie = ""

    def __enter__(self) -> Self:
        try:
            links = wait_until(self.links, what="the console says where it is")
            self.port = int(re.findall(r":(\d+)/", links[0])[0])
            wait_until(self._answers, what="the console answers")
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        interrupted = self.process.poll() is None  # or the test has killed it
        if interrupted:
            self.process.send_signal(signal.SIGINT)
            wait_exit(self.process, 30)
        said = self.log
        assert "Traceback" not in said, said
        assert self.process.returncode == 130 or not interrupted, said

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def links(self) -> list[str]:
        """All links that were printed; the last one lets a browser in."""
        assert self.process.poll() is None, f"penstock ui ended: {self.log}"
        return re.findall(r"http://\S+\n", self.log)

    @property
    def link(self) -> str:
        return self.links()[-1].strip()

    def sign_in(self) -> None:
        """From now on `get` shows a cookie."""
        answer = self.get(self.link.removeprefix(self.url))
        assert answer.status == 303, answer.text
        self._cookie = answer.headers["set-cookie"].partition(";")[0]

    def get(self, path: str, *, method: str = "GET", **headers: str) -> Answer:
        """One request; `headers` with _ for -. Without a cookie before `sign_in`."""
        given = {"Cookie": self._cookie} if self._cookie else {}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, headers=given)
            answer = connection.getresponse()
            fields = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, fields, answer.read())
        finally:
            connection.close()

    def see(self, path: str, *said: str, status: int = 200) -> Answer:
        """The page, once it is there and says all this: while a broker stands still, a page says
        that instead."""

        def seen() -> Answer | None:
            answer = self.get(path)
            there = answer.status == status and all(one in _plain(answer.text) for one in said)
            return answer if there else None

        return wait_until(seen, what=f"{path} says {said}")

    def _answers(self) -> bool:
        try:
            return self.get("/static/console.css").status == 200
        except OSError:
            return False


def _plain(page: str) -> str:
    """With and without its tags, so that both texts and what is beside them are found."""
    words = " ".join(re.sub(r"<[^>]*>", " ", page).split())
    return f"{page}\n{html.unescape(words)}"
