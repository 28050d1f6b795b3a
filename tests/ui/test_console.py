"""`penstock ui` over HTTP, with a real cluster: who is let in, what pages say, where limits are."""

import json
import os
import re
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from pathlib import Path
from urllib.parse import quote

import pytest
from support.cluster import PATIENT, Cluster
from support.console import ConsoleProcess
from support.waiting import wait_until
from support.wire import now_ms

from penstock.client import Admin, AsyncAdmin, Consumer, Producer, TopicPartition
from penstock.ui.records import Records
from penstock.views.records import Wanted

EVIL = "<script>document.title='evil'</script>"
HALF = b'{"cut": "caf\\ud83d", "rest": "' + b"x" * 200 + b'"}'
"""With an escaped half of a surrogate pair, which is JSON and no Unicode text."""
LATE_HOURS = (5.5, 84)
"""How old the records are that wait in each partition of the topic late."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("console")
    with Cluster(folder, brokers=2, controller_config=PATIENT) as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic("flights", 2, 2)
            admin.create_topic("blobs", 1, 1)
            admin.create_topic("wide", 250, 1)
            admin.create_topic("late", 2, 1)
            admin.create_topic("paid", 1, 1)
            admin.create_topic("halves", 1, 1)
            admin.create_topic("headed", 1, 1)
            admin.create_topic("aborted", 2, 1)
        with Producer(cluster.bootstrap) as producer:
            for number in range(120):
                document = json.dumps({"n": number, "from": "SEA"}).encode()
                producer.send("flights", document, key=b"UA", partition=number % 2)
            producer.send(
                "flights", EVIL.encode(), key=EVIL.encode(), headers=[(EVIL, EVIL.encode())]
            )
            producer.send("blobs", bytes(range(256)) * 3_000, key=b"logo")
            producer.send("blobs", None, key=b"gone")
            producer.send("halves", HALF)
            for _ in range(2):
                producer.send("headed", b"v", headers=[("n" * 100_000, b"x" * 100_000)] * 4)
            producer.send("headed", b"v", headers=[("n", b"x")] * 600)
            for number in range(60):
                producer.send("aborted", f"good {number}".encode(), partition=0)
            producer.send("aborted", b"beside", partition=1)
            for partition, hours in enumerate(LATE_HOURS):
                sent_ms = now_ms() - int(hours * 3_600_000)
                producer.send("late", b"x", partition=partition, timestamp_ms=sent_ms)
        with Producer(cluster.bootstrap, transactional_id="gives-up") as producer:
            transaction = producer.transaction()
            transaction.begin()
            for _ in range(100):
                transaction.send("aborted", b"given up", partition=0)
            producer.flush()
            transaction.abort()
        with Consumer(cluster.bootstrap, group_id=EVIL, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("flights", 0)])
            consumer.seek(TopicPartition("flights", 0), 0)
            assert consumer.poll(30, 10)
            late = {TopicPartition("late", partition): 0 for partition in range(len(LATE_HOURS))}
            consumer.commit({TopicPartition("flights", 0): 10, **late})
        yield cluster


@pytest.fixture(scope="module")
def console(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    with ConsoleProcess(tmp_path_factory.mktemp("ui"), cluster.bootstrap) as console:
        console.sign_in()
        yield console


@pytest.fixture
def stranger(console: ConsoleProcess) -> Iterator[ConsoleProcess]:
    """The same console, seen by somebody without a cookie."""
    cookie, console._cookie = console._cookie, ""
    yield console
    console._cookie = cookie


def words(html: str) -> str:
    """What the page says, without its tags."""
    return " ".join(re.sub(r"<[^>]*>", " ", html.split("<main", 1)[1]).split())


def rows_of(page: str, table: str) -> list[dict[str, str]]:
    """What people read in each cell, by the key of its column."""
    (shown,) = re.findall(rf'aria-label="{table}".*?</table>', page, re.DOTALL)
    rows = []
    for row in re.findall(r"<tr>.*?</tr>", shown.partition("<tbody>")[2], re.DOTALL):
        cells = re.findall(r'<td class="(?:n )?k-(\w+)">(.*?)</td>', row, re.DOTALL)
        rows.append({key: unescape(re.sub(r"<[^>]*>", "", cell)).strip() for key, cell in cells})
    return rows


def test_a_link_lets_one_browser_in_and_the_terminal_shows_the_next(
    stranger: ConsoleProcess,
) -> None:
    used = stranger.link.removeprefix(stranger.url)
    first = stranger.get(used)
    assert first.status == 303
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    second = stranger.get(used)
    assert (second.status, "set-cookie" in second.headers) == (403, False)
    assert "This link was used before" in second.text
    assert stranger.link.removeprefix(stranger.url) != used
    assert stranger.get("/login?token=guessed").status == 403
    assert stranger.get("/login").status == 403


VISITOR = """#!{python}
import http.client, sys
from pathlib import Path
from urllib.parse import urlsplit

url = urlsplit(sys.argv[1])
connection = http.client.HTTPConnection(url.netloc, timeout=120)
connection.request("GET", f"{{url.path}}?{{url.query}}")
Path({seen!r}).write_text(f"{{connection.getresponse().status}} {{sys.argv[1]}}")
"""
"""A browser that does not end before it has its page, as those in a terminal do."""


def test_a_browser_opens_the_link_and_the_terminal_shows_only_the_next(
    cluster: Cluster, tmp_path: Path
) -> None:
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(VISITOR.format(python=sys.executable, seen=str(seen)))
    browser.chmod(0o700)
    with ConsoleProcess(tmp_path, cluster.bootstrap, browser=str(browser)) as console:
        wait_until(seen.exists, what="the browser has got an answer")
        status, link = wait_until(seen.read_text, what="and has noted it").split()
        assert status == "303"
        assert re.fullmatch(rf"{console.url}/login\?token=[\w-]{{20,}}", link)
        assert console.log.splitlines() == [
            f"console of {cluster.bootstrap}, until Ctrl-C",
            f"open in a browser (counts once): {console.link}",
        ]
        assert console.link != link
        assert console.get(link.removeprefix(console.url)).status == 403, "it counts once"
        console.sign_in()


def test_a_browser_that_cannot_be_opened_leaves_the_link_in_the_terminal(
    cluster: Cluster, tmp_path: Path
) -> None:
    others = ("DISPLAY", "WAYLAND_DISPLAY", "TERM")
    plain = {name: value for name, value in os.environ.items() if name not in others}
    with ConsoleProcess(tmp_path, cluster.bootstrap, browser="false", environment=plain) as console:
        assert len(console.links()) == 1
        console.sign_in()


def test_nobody_sees_anything_without_a_cookie(stranger: ConsoleProcess) -> None:
    for path in ("/", "/topics", "/topics/flights/records", "/groups", "/transactions", "/group"):
        answer = stranger.get(path)
        assert answer.status == 401, path
        assert "flights" not in answer.text
        assert "127.0.0.1:" not in answer.text, "the cluster's address is shown to a stranger"


def test_names_that_point_here_are_not_answered(console: ConsoleProcess) -> None:
    for host in ("evil.example", f"evil.example:{console.port}", "127.0.0.1", "127.0.0.1:1"):
        assert console.get("/", Host=host).status == 421, host
    assert console.get("/", Host=f"localhost:{console.port}").status == 200


def test_nothing_can_be_changed(console: ConsoleProcess) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
        for path in ("/", "/topics/flights", "/login", "/static/console.css"):
            assert console.get(path, method=method).status == 405, (method, path)


def test_every_answer_forbids_what_pages_do_not_need(console: ConsoleProcess) -> None:
    for path in ("/", "/static/console.js", "/login?token=x", "/nowhere", "/topics/blobs/records"):
        headers = console.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; ")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers


def test_pages_have_neither_scripts_nor_styles_inside(console: ConsoleProcess) -> None:
    for path in ("/", "/topics", "/topics/flights", "/topics/flights/records", "/groups"):
        html = console.get(path).text
        assert not re.search(r"<script(?! src=\"/static/)|<style|\sstyle=|\son\w+=", html), path


def test_the_overview_says_that_all_is_well(console: ConsoleProcess) -> None:
    console.see("/", "All is well", "2 of 2")


@pytest.mark.parametrize(
    "path",
    ["/", "/topics", *map("/topics/flights".__add__, ("", "/settings", "/groups")), "/groups"],
)
def test_a_page_of_kept_answers_says_how_old_they_are(console: ConsoleProcess, path: str) -> None:
    def as_of() -> str:
        page = " ".join(console.get(path).text.split())
        (found,) = re.findall(r'As of <time datetime="([^"]+)"', page)
        return str(found)

    # Of two moments to render, none is the other; an answer is kept for two seconds at least.
    wait_until(lambda: as_of() == as_of(), what="two pages of the same answers say the same")


def test_topics_are_listed_and_found_by_name(console: ConsoleProcess) -> None:
    said = words(console.see("/topics", "flights").text)
    assert "__consumer_offsets" not in said
    assert "blobs" not in words(console.see("/topics?q=flig", "flights").text)
    console.see("/topics?q=none", "No topic has 'none' in its name.")
    console.see("/topics?internal=on", "__consumer_offsets")


def test_records_are_filtered_by_key_text_time_and_partition(console: ConsoleProcess) -> None:
    page = "/topics/flights/records?count=20"
    last = console.see(page, "&#34;n&#34;: 119").text
    assert last.count("<li>") == 20
    console.see(f"{page}&text=%22n%22:%2037,", "1 record of 121 looked at")
    evil = "%3Cscript%3Edocument.title%3D%27evil%27%3C/script%3E"
    console.see(f"{page}&key={evil}", "1 record of 121 looked at")
    console.see(f"{page}&key=DL", "None of the 121 records looked at matches")
    console.see(f"{page}&since_ms=99999999999999", "No record is that recent")
    console.see(f"{page}&since_ms=1", "&#34;n&#34;: 0,")
    odd = console.see(f"{page}&partition=1", "&#34;n&#34;: 119").text
    assert "&#34;n&#34;: 118" not in odd


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("count=7", "count is '7'; it must be one of 20, 50, 100, 200"),
        ("partition=x", "partition is 'x'; it must be a number, or empty for all"),
        ("partition=9", "topic flights has partitions 0 to 1, not 9"),
        ("form=xml", "form is 'xml'; it must be one of auto, json, text, base64"),
        ("since_ms=-1", "since_ms is '-1'; it must be milliseconds since 1970"),
        (f"since_ms={'0' * 20}{'9' * 5_000}", f"since_ms is '{'0' * 20}{'9' * 20}'; it must be"),
        (f"since_ms={'9' * 16}", f"since_ms is '{'9' * 16}'; it must be"),
        (f"text={'a' * 1_001}", "text has 1,001 characters; the limit is 1,000"),
    ],
)
def test_bad_fields_are_named(console: ConsoleProcess, query: str, said: str) -> None:
    console.see(f"/topics/flights/records?{query}", said)


def test_the_last_records_are_found_behind_those_that_were_aborted(
    console: ConsoleProcess,
) -> None:
    page = console.see("/topics/aborted/records?count=20", "good 59", "20 records;").text
    assert (page.count("<li>"), page.count("given up")) == (20, 0)
    assert "good 40" not in page
    page = console.see("/topics/aborted/records?count=200", "good 0", "beside", "61 records;").text
    assert page.count("<li>") == 61


def test_headers_are_bounded_as_values_are(console: ConsoleProcess) -> None:
    page = console.see("/topics/headed/records", "and 580 more", "3 records;").text
    assert len(page) < 20_000
    console.see("/topics/headed/records/0/2", "And 100 more headers")


async def test_headers_count_to_what_a_search_may_read(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.ui.records.SCAN_BYTES", 1 << 20)
    async with AsyncAdmin(cluster.bootstrap) as admin:
        topic = (await admin.describe_topics(["headed"]))["headed"]
    found = await Records(cluster.bootstrap).find(topic, Wanted())
    assert (len(found.records), found.stopped) == (2, "1 MiB were read")


async def test_what_a_limit_cuts_off_is_older_than_what_is_shown(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic("large", partitions=1)
    with Producer(cluster.bootstrap, batch_bytes=4_000) as producer:
        for number in range(2_000):
            producer.send("large", b"%04d" % number + bytes(1_000))
    monkeypatch.setattr("penstock.ui.records.SCAN_BYTES", 1 << 20)
    async with AsyncAdmin(cluster.bootstrap) as admin:
        topic = (await admin.describe_topics(["large"]))["large"]
    records = Records(cluster.bootstrap)
    newest = await records.find(topic, Wanted(text="1999"))
    assert [one.offset for one in newest.records] == [1_999]
    assert newest.stopped == "1 MiB were read"
    assert (await records.find(topic, Wanted(text="0003"))).records == ()
    monkeypatch.setattr("penstock.ui.records.SCAN_BYTES", 20_000)
    last = await records.find(topic, Wanted(count=200))
    offsets = [one.offset for one in last.records]
    assert offsets == list(range(1_999, 1_999 - len(offsets), -1))
    assert 18 <= len(offsets) <= 20


async def test_a_search_back_has_an_end_and_says_so(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.ui.records.SCAN_RECORDS", 60)  # 30 of each partition
    async with AsyncAdmin(cluster.bootstrap) as admin:
        topic = (await admin.describe_topics(["aborted"]))["aborted"]
    found = await Records(cluster.bootstrap).find(topic, Wanted(partition=0, count=20))
    assert (found.records, found.stopped) == (
        (),
        "the last 60 offsets of each partition were looked at",
    )
    found = await Records(cluster.bootstrap).find(topic, Wanted(count=20))
    assert len(found.records) == 1
    assert found.stopped == "the last 30 offsets of each partition were looked at"


def test_half_a_character_in_a_record_is_shown_as_it_was_written(console: ConsoleProcess) -> None:
    for page in ("/topics/halves/records", "/topics/halves/records/0/0"):
        console.see(page, '"cut": "caf\\ud83d",')


def test_records_stay_text(console: ConsoleProcess) -> None:
    for path in ("/topics/flights/records?count=200", "/groups", "/topics/flights/groups"):
        assert EVIL not in console.see(path, "&lt;script&gt;").text, path


def test_a_hostile_record_has_a_page_of_its_own(console: ConsoleProcess) -> None:
    evil = quote(EVIL)
    listed = console.see(f"/topics/flights/records?key={evil}", "1 record of 121").text
    (href,) = set(re.findall(r'<a href="(/topics/flights/records/\d+/\d+)"', listed))
    for form in ("auto", "text"):
        shown = console.see(f"{href}?form={form}", f"Headers {EVIL} {EVIL} Value {EVIL}").text
        assert EVIL not in shown, form
    assert EVIL not in console.see(f"{href}?form={evil}", "Headers").text


def test_open_transactions_show_who_has_them_for_how_long_and_whom_they_block(
    cluster: Cluster, console: ConsoleProcess
) -> None:
    console.see("/transactions", "No transaction is open.", "No reader waits for a transaction.")
    evil_client = f"client {EVIL}"
    with Producer(
        cluster.bootstrap,
        transactional_id=EVIL,
        client_id=evil_client,
        transaction_timeout_ms=600_000,
    ) as producer:
        transaction = producer.transaction()
        transaction.begin()
        for _ in range(3):
            transaction.send("paid", b"x")
        producer.flush()
        page = console.see("/transactions", "paid/0", evil_client).text
        assert EVIL not in page
        (opened,) = rows_of(page, "Open transactions")
        assert opened["id"] == EVIL
        assert (opened["client"], opened["host"]) == (evil_client, "127.0.0.1")
        assert re.fullmatch(r"[\d.]+[sm]", opened["open_s"])
        (blocking,) = rows_of(page, "Blocking readers")
        assert blocking["id"] == EVIL
        assert (blocking["partition"], blocking["last_stable_offset"]) == ("paid/0", "0")
        assert (blocking["behind"], blocking["state"]) == ("3", "open")
        assert re.fullmatch(r"[\d.]+[sm]", blocking["age_s"])
        transaction.abort()
    console.see("/transactions", "No transaction is open.", "No reader waits for a transaction.")


def test_a_group_with_any_id_has_a_page_with_its_lag(console: ConsoleProcess) -> None:
    shown = console.see("/groups", 'href="/group?').text
    (href,) = set(re.findall(r'href="(/group\?[^"]*)"', shown))
    page = console.see(href, "flights 0 10").text
    waits = {
        f"{row['topic']}/{row['partition']}": row["lag_s"] for row in rows_of(page, "Partitions")
    }
    assert (waits["late/0"], waits["late/1"]) == ("5h", "3d")
    assert re.fullmatch(r"[\d.]+[sm]", waits["flights/0"])
    assert "Oldest waits 3d" in words(page)
    missing = console.get("/group?id=nobody")
    assert missing.status == 404
    assert "does not exist" in missing.text


def test_a_large_binary_value_is_cut_and_can_be_saved(console: ConsoleProcess) -> None:
    said = ("base64, 750.0 KiB, only the beginning", "null")
    assert len(console.see("/topics/blobs/records", *said).text) < 20_000
    whole = console.get("/topics/blobs/records/0/0").text
    assert len(whole) < 100_000
    saved = console.get("/topics/blobs/records/0/0/value.bin")
    assert saved.body == bytes(range(256)) * 3_000
    assert saved.headers["content-type"] == "application/octet-stream"
    assert saved.headers["content-disposition"].startswith("attachment; ")
    assert console.get("/topics/blobs/records/0/1/value.bin").status == 404
    assert console.get("/topics/blobs/records/0/0/secret.bin").status == 404


def test_what_does_not_exist_is_said(console: ConsoleProcess) -> None:
    for path in (
        "/nowhere",
        "/topics/none",
        "/topics/flights/records/0/999999",
        "/topics/flights/records/77/0",
        "/topics/flights/records/x/y",
        "/static/../gate.py",
        "/static/none.css",
    ):
        answer = console.get(path)
        assert answer.status == 404, path
        assert "defect" not in answer.text


def test_a_wide_topic_comes_in_pages(console: ConsoleProcess) -> None:
    first = console.see("/topics/wide", "1 to 100 of 250").text
    assert first.count("<tr>") == 101
    console.see("/topics/wide?page=3", "201 to 250 of 250")
    console.see("/topics/wide?page=99", "201 to 250 of 250")
    console.see("/topics/wide?page=x", "1 to 100 of 250")
    console.see("/topics/wide/records", "only the first 200 of 250 partitions are read")


def test_a_hundred_tabs_get_their_page(console: ConsoleProcess) -> None:
    with ThreadPoolExecutor(100) as tabs:
        answers = list(tabs.map(lambda _: console.get("/"), range(100)))
    assert {one.status for one in answers} == {200}


def test_a_port_that_is_taken_is_one_clear_line(cluster: Cluster, tmp_path: Path) -> None:
    from typer.testing import CliRunner  # noqa: PLC0415 - only here

    from penstock.cli.main import app  # noqa: PLC0415 - only here

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ["ui", "--no-browser", "--port", str(port), "--bootstrap", cluster.bootstrap]
        done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    said = f"penstock: cannot listen on 127.0.0.1:{port}: "
    assert done.stderr.startswith(said), done.output
    assert done.stderr.rstrip().endswith("give another --port, or 0 for any")
    assert len(done.stderr.splitlines()) == 1
