"""Attacks 8 and 9 with people's tokens: controllers ask an issuer for its keys, over real HTTP.

The issuer listens on loopback in this process, where plaintext is allowed.
"""

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from support.enrolling import EnrolmentScene
from support.tokens import Issuer, now_s, without_signature
from support.waiting import wait_until

from penstock.client import Admin
from penstock.core.authorization.model import Kind, Operation, Resource, Rule
from penstock.errors import ClusterError, ErrorCode, MisuseError, PenstockError
from penstock_broker.controller import oidc
from penstock_broker.controller.enrolment_issuers import PublishedIssuers
from penstock_broker.controller.oidc import (
    CONFIGURATION,
    KEYS_BYTES_MAX,
    AllIssuers,
    OidcSource,
    fetch_entry,
    parse_oidc,
)
from penstock_broker.serving.tokens.checking import verified
from penstock_broker.serving.tokens.issuers import parse_issuers


class Login:
    """An issuer on loopback: pages by their path, each (status, headers, content)."""

    def __init__(self) -> None:
        pages: dict[str, tuple[int, dict[str, str], bytes]] = {}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, headers, content = pages.get(self.path, (404, {}, b""))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self.pages = pages
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        address = f"http://127.0.0.1:{self._server.server_port}"
        self.tokens = Issuer(address, "flights", kind="oidc", groupsClaim="teams")
        self.discovery = {"issuer": address, "jwks_uri": f"{address}/keys"}
        self.publish()

    def publish(self, *, keys: object = None, **discovery: Any) -> None:
        """Right pages, but for these changes."""
        self.put(CONFIGURATION, {**self.discovery, **discovery})
        self.put("/keys", {"keys": [self.tokens.jwk]} if keys is None else keys)

    def put(self, path: str, document: object) -> None:
        self.pages[path] = (200, {}, json.dumps(document).encode())

    @property
    def option(self) -> str:
        """Of a controller."""
        given = {"issuer": self.tokens.issuer, "audience": "flights", "groupsClaim": "teams"}
        return json.dumps([given])

    def token(self, user: str, *teams: str, **changes: Any) -> str:
        claims = {"sub": user, "teams": list(teams), "kubernetes.io": None, **changes}
        return self.tokens.token(**claims)

    def close(self) -> None:
        """Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def login(monkeypatch: pytest.MonkeyPatch) -> Iterator[Login]:
    monkeypatch.setattr(oidc, "TIMEOUT_S", 60.0)
    one = Login()
    yield one
    one.close()


def refused(login: Login) -> str:
    """What is wrong with the issuer's answers."""
    (entry,) = parse_oidc(login.option)
    with pytest.raises(ClusterError) as raised:
        fetch_entry(entry)
    return raised.value.message


def test_answers_that_cannot_be_used_are_refused(login: Login) -> None:
    (entry,) = parse_oidc(login.option)
    assert json.loads(fetch_entry(entry))["jwks"] == {"keys": [login.tokens.jwk]}
    login.publish(issuer="https://another.example")
    assert "says that it is issuer" in refused(login)
    login.publish(jwks_uri=None)
    assert "jwks_uri" in refused(login)
    for address in ("http://keys.example/", "file:///etc/passwd", "https://a@b/", "https://[/"):
        login.publish(jwks_uri=address)
        assert "is not an https address" in refused(login)
    login.publish(keys={"keys": []})
    assert "has no key" in refused(login)
    login.publish(keys={"keys": [{**login.tokens.jwk, "x": "?"}]})
    assert "cannot be used" in refused(login)
    login.publish(keys=["no object"])
    assert "is not a JSON object" in refused(login)
    login.publish(keys={"keys": [], "padding": "x" * KEYS_BYTES_MAX})
    assert "has more than" in refused(login)
    login.pages["/keys"] = (200, {}, b"{")
    assert "cannot be read" in refused(login)
    login.publish()
    login.pages["/elsewhere"] = login.pages["/keys"]
    login.pages["/keys"] = (302, {"Location": "/elsewhere"}, b"")
    assert "redirects are not followed" in refused(login)
    login.close()
    assert "cannot be read" in refused(login)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("{}", "must be a JSON list"),
        ("[1]", "must be a JSON list"),
        ('[{"issuer": "https://a", "audience": "x", "audienec": "y"}]', "audienec"),
        ('[{"issuer": "https://a"}]', "audience"),
        ('[{"issuer": "http://login.example", "audience": "x"}]', "not an https address"),
        ('[{"issuer": "ftp://127.0.0.1", "audience": "x"}]', "not an https address"),
        (
            json.dumps([{"issuer": f"https://a{end}", "audience": "x"} for end in ("", "/b")]),
            "begin alike",
        ),
        (json.dumps([{"issuer": f"https://{n}", "audience": "x"} for n in range(9)]), "at most 8"),
    ],
)
def test_a_wrong_option_says_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(MisuseError) as raised:
        parse_oidc(text)
    assert said in raised.value.message


@asynccontextmanager
async def kept(issuers: AllIssuers) -> AsyncIterator[None]:
    """Kept up to date, as controllers do."""
    async with asyncio.TaskGroup() as group:
        running = group.create_task(issuers.run())
        yield
        running.cancel()


async def test_nobody_waits_for_an_issuer_that_does_not_answer(
    login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers get the newest keys of the API server meanwhile, and the issuer's when it answers."""
    monkeypatch.setattr(oidc, "WAIT_S", 0.05)
    (entry,) = parse_oidc(login.option)
    answers = Event()

    def fetch() -> bytes:
        assert answers.wait(60)
        return fetch_entry(entry)

    first = json.dumps({"issuers": [Issuer().entry]}).encode()
    with ThreadPoolExecutor(2) as executor:
        api = PublishedIssuers(lambda: first, executor)
        both = AllIssuers(api, [OidcSource(entry, PublishedIssuers(fetch, executor))])
        async with kept(both):
            try:
                for _ in range(3):
                    known = parse_issuers(await both.look_again())
                    assert [len(one.keys) for one in known.values()] == [1, 0]
            finally:
                answers.set()
            monkeypatch.setattr(oidc, "WAIT_S", 60.0)
            known = parse_issuers(await both.look_again())
            assert [len(one.keys) for one in known.values()] == [1, 1]


async def test_an_issuer_that_is_down_keeps_its_keys_and_disturbs_nobody(login: Login) -> None:
    kubernetes = Issuer()
    clock = [0.0]
    entries = parse_oidc(login.option)
    first = json.dumps({"issuers": [kubernetes.entry]}).encode()
    with ThreadPoolExecutor(2) as executor:
        api = PublishedIssuers(lambda: first, executor, now_s=lambda: clock[0])
        source = PublishedIssuers(
            lambda: fetch_entry(entries[0]),
            executor,
            now_s=lambda: clock[0],
            apart_at_first_s=30.0,
        )
        both = AllIssuers(api, [OidcSource(entries[0], source)])
        known = parse_issuers(await both.document())  # nobody has been asked for people's keys
        assert verified(kubernetes.token(), known, now_s()).principal
        with pytest.raises(ClusterError) as raised:
            verified(login.token("ada"), known, now_s())
        assert raised.value.code is ErrorCode.AUTH_NOT_READY

        async with kept(both):
            known = parse_issuers(await both.look_again())
            found = verified(login.token("ada", "ops"), known, now_s())
            assert found.principal == f"oidc:{login.tokens.issuer}/ada"
            assert found.groups == (f"oidc-group:{login.tokens.issuer}/ops",)
            login.close()
            clock[0] += 31.0
            known = parse_issuers(await both.look_again())
            assert verified(login.token("ada"), known, now_s()).principal == found.principal


async def test_an_issuer_like_the_api_server_is_left_out(login: Login) -> None:
    kubernetes = Issuer(login.tokens.issuer)
    entries = parse_oidc(login.option)
    first = json.dumps({"issuers": [kubernetes.entry]}).encode()
    with ThreadPoolExecutor(2) as executor:
        both = AllIssuers(
            PublishedIssuers(lambda: first, executor),
            [OidcSource(entries[0], PublishedIssuers(lambda: fetch_entry(entries[0]), executor))],
        )
        async with kept(both):
            known = parse_issuers(await both.look_again())
    assert [one.kind for one in known.values()] == ["kubernetes"]


async def test_a_broken_file_of_issuers_stays_what_it_is(login: Login) -> None:
    entries = parse_oidc(login.option)
    for broken in (b"{", b"[]", b'{"issuers": 1}'):
        with ThreadPoolExecutor(1) as executor:
            api = PublishedIssuers(lambda broken=broken: broken, executor)  # type: ignore[misc]
            other = PublishedIssuers(lambda: fetch_entry(entries[0]), executor)
            assert await AllIssuers(api, [OidcSource(entries[0], other)]).document() == broken


def test_a_controller_that_hands_nobody_the_keys_refuses_the_option(
    login: Login, tmp_path: Path
) -> None:
    words = ["controller", f"--metadata-dir={tmp_path}", "--listen=127.0.0.1:0"]
    done = subprocess.run(
        [sys.executable, "-m", "penstock_broker", *words, f"--oidc-issuers={login.option}"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "--oidc-issuers" in line
    assert "--enrol-listen" in line


def test_people_get_in_by_their_issuer_and_its_groups(
    login: Login, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real processes: a controller fetches the keys, a broker believes them, rules decide."""
    issuer = login.tokens.issuer
    monkeypatch.setenv("PENSTOCK_OIDC_ISSUERS", login.option)
    monkeypatch.setenv("PENSTOCK_ADMINS", f"oidc:{issuer}/root")
    with EnrolmentScene(tmp_path) as scene:
        scene.start()

        def admin(token: str) -> Admin:
            path = tmp_path / "user.token"
            path.write_text(token)
            ca = str(scene.path / "trust.crt")
            return Admin(scene.broker_address, ca_file=ca, token_file=str(path))

        def topics(token: str) -> list[str]:
            with admin(token) as one:
                return one.list_topics()

        def code(token: str) -> ErrorCode:
            with pytest.raises(PenstockError) as raised:
                topics(token)
            return raised.value.code

        root_token = login.token("root")

        def keys_are_known() -> bool:
            try:
                topics(root_token)
            except PenstockError as error:
                if error.code in {ErrorCode.AUTH_NOT_READY, ErrorCode.THROTTLED}:
                    return False
                raise
            return True

        wait_until(keys_are_known, what="the issuer's keys reach the broker", timeout_s=90)
        with admin(login.token("root")) as root:
            root.create_topic("flights", 1)
            rule = Rule(principals=(f"oidc-group:{issuer}/analysts",), operations=(Operation.READ,))
            root.alter_access(Resource(Kind.TOPIC, "flights"), [rule])
        wait_until(lambda: topics(login.token("ada", "analysts")) == ["flights"], what="her rule")
        assert topics(login.token("bob", "guests")) == []
        another = Issuer("https://another.example", "flights", kind="oidc")
        same_name = Issuer(issuer, "flights", kind="oidc")
        for token in (
            login.token("root", aud=["another"]),
            another.token(sub="root"),
            same_name.token(sub="root"),  # another key under the same id
            without_signature(login.token("root"), alg="none", kid="one"),
            login.token("root", exp=int(now_s()) - 600),
        ):
            assert code(token) in {ErrorCode.UNAUTHENTICATED, ErrorCode.CREDENTIALS_EXPIRED}
        login.close()
        assert topics(login.token("ada", "analysts", jti="another")) == ["flights"]


@pytest.mark.parametrize("sent", [b"HTTP/1.1 200 OK\r\nX-Slow: ", b"HTTP/1.1 200 OK\r\n\r\n{"])
def test_an_issuer_that_dribbles_is_given_up(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its thread never ends: its keys stay old, and the controller cannot stop."""
    monkeypatch.setattr(oidc, "TIMEOUT_S", 0.2)
    told = Event()

    def dribble() -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.recv(65_536)
            connection.sendall(sent)
            while not told.wait(0.02):
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(2) as threads:
        threads.submit(dribble)
        option = [{"issuer": f"http://127.0.0.1:{listener.getsockname()[1]}", "audience": "a"}]
        (entry,) = parse_oidc(json.dumps(option))
        asking = threads.submit(fetch_entry, entry)
        try:
            error = asking.exception(timeout=60)
        finally:
            told.set()
    assert isinstance(error, ClusterError), error
