"""The console in a real browser: texts, the keyboard alone, hostile records, a broker that dies."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys
from support.browser import Browser, browsing
from support.cluster import PATIENT, Cluster
from support.console import ConsoleProcess
from support.waiting import wait_until

from penstock.client import Admin, Consumer, Producer, TopicPartition

EVIL = "<img src=x onerror=\"document.title='evil'\"><script>document.title='evil'</script>"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("browser")
    with Cluster(folder, brokers=2, controller_config=PATIENT) as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic("flights", 2, 2)
        with Producer(cluster.bootstrap) as producer:
            for number in range(30):
                producer.send("flights", b'{"flight": "UA%d"}' % number, partition=0)
            producer.send("flights", EVIL.encode(), EVIL.encode(), headers=[(EVIL, EVIL.encode())])
        with Consumer(cluster.bootstrap, group_id=EVIL) as consumer:
            consumer.assign([TopicPartition("flights", 0)])
            consumer.commit({TopicPartition("flights", 0): 5})
        yield cluster


@pytest.fixture(scope="module")
def console(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    with ConsoleProcess(tmp_path_factory.mktemp("ui"), cluster.bootstrap) as console:
        yield console


@pytest.fixture(scope="module")
def window(console: ConsoleProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile") / "chromium") as browser:
        browser.open(console.link)
        browser.see("All is well")
        yield browser


@pytest.fixture
def browser(window: Browser) -> Iterator[Browser]:
    """Signed in. The browser must have had nothing to complain about when the test ends."""
    window.complaints()
    yield window
    assert window.complaints() == []


def test_the_link_leads_to_a_page_without_the_token(
    browser: Browser, console: ConsoleProcess
) -> None:
    def all_is_well() -> bool:
        browser.open(f"{console.url}/")
        return "✔" in browser.driver.title

    wait_until(all_is_well, what="the title says that all is well")
    assert browser.driver.current_url == f"{console.url}/"
    assert browser.run("return document.cookie") == "", "scripts can read the cookie"


def test_the_page_refreshes_itself(browser: Browser, console: ConsoleProcess) -> None:
    browser.open(f"{console.url}/topics/flights")
    # In one look: an element may be replaced between two.
    shown = "const time = document.querySelector('.asof time'); return time && time.dataset.ms"
    before = browser.run(shown)
    assert before
    browser.run("document.getElementById('content').dataset.mark = 'same page'")

    def refreshed() -> bool:
        now = browser.run(shown)
        return bool(now) and now != before

    wait_until(refreshed, what="the page refreshes itself")
    assert browser.find("#content").get_attribute("data-mark") == "same page"


def test_times_are_local_and_say_utc_when_asked(browser: Browser, console: ConsoleProcess) -> None:
    browser.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Tokyo"})
    browser.open(f"{console.url}/topics/flights/records")
    shown = browser.find(".meta time")
    utc = shown.get_attribute("title") or ""
    assert utc.endswith("Z (UTC)")
    hour = (int(utc[11:13]) + 9) % 24
    assert shown.text[11:13] == f"{hour:02d}"
    browser.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": ""})


def test_the_keyboard_alone_leads_to_a_record(browser: Browser, console: ConsoleProcess) -> None:
    browser.open(f"{console.url}/")
    browser.tab_to("Topics")
    browser.press(Keys.ENTER)
    browser.see("flights", "table")
    browser.tab_to("flights")
    browser.press(Keys.ENTER)
    browser.see("Partition", "table")
    browser.tab_to("Records")
    browser.press(Keys.ENTER)
    browser.see("UA29", ".records")
    for _ in range(40):
        browser.press(Keys.TAB)
        if browser.has_keyboard("name") == "text":
            break
    browser.press("UA17", Keys.ENTER)
    browser.see("1 record of 31 looked at")
    browser.tab_to("0/17")
    outline = browser.run("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "one cannot see where the keyboard is"
    browser.press(Keys.ENTER)
    assert "UA17" in browser.see("Save the value as a file")


def test_a_refresh_keeps_the_keyboard_where_it_is(
    browser: Browser, console: ConsoleProcess
) -> None:
    browser.open(f"{console.url}/topics")
    browser.tab_to("flights")
    shown = "return document.querySelector('.asof time').dataset.ms"
    before = browser.run(shown)
    wait_until(lambda: browser.run(shown) != before, what="the page refreshes itself")
    assert browser.has_keyboard() == "flights"


def test_hostile_records_keys_headers_and_groups_stay_text(
    browser: Browser, console: ConsoleProcess
) -> None:
    for path in ("/topics/flights/records", "/groups", "/topics/flights/groups"):
        browser.open(f"{console.url}{path}")
        browser.see(EVIL)
        assert "evil" not in browser.driver.title
        assert browser.run("return document.images.length") == 1, "only the logo is an image"
    browser.click('a[href^="/group?"]')
    assert EVIL in browser.see("Members")


def test_a_time_is_chosen_in_local_time(browser: Browser, console: ConsoleProcess) -> None:
    browser.open(f"{console.url}/topics/flights/records")
    browser.run(
        "const since = document.getElementById('since'); since.value = '2001-02-03T04:05:06';"
        "since.dispatchEvent(new Event('input'));"
    )
    expected = browser.run("return new Date(2001, 1, 3, 4, 5, 6).getTime()")
    browser.find("#search button").click()
    browser.see("UA0", ".records")
    assert f"since_ms={expected}" in browser.driver.current_url
    assert browser.find("#since").get_attribute("value") == "2001-02-03T04:05:06"


@pytest.mark.parametrize("path", ["/", "/topics/flights", "/topics/flights/records", "/groups"])
def test_a_phone_is_wide_enough(browser: Browser, console: ConsoleProcess, path: str) -> None:
    size = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        browser.open(f"{console.url}{path}")
        assert browser.run("return document.documentElement.scrollWidth") <= 360
    finally:
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_broker_that_is_killed_is_said_and_its_return_too(
    browser: Browser, console: ConsoleProcess, cluster: Cluster
) -> None:
    browser.open(f"{console.url}/")
    browser.see("All is well")
    cluster.brokers[1].kill()
    try:
        browser.see("broker 1 is down")
        browser.see("below min.insync.replicas: writes with acks=all are refused", ".findings")
        browser.see("Some clients are not served", "h1")
        browser.see("down", "table")
    finally:
        cluster.brokers[1].start()
    browser.see("All is well")


def test_a_console_that_stopped_is_said(cluster: Cluster, tmp_path: Path) -> None:
    with (
        ConsoleProcess(tmp_path, cluster.bootstrap) as console,
        browsing(tmp_path / "profile") as browser,
    ):
        browser.open(console.link)
        browser.see("All is well")
        console.process.kill()
        console.process.wait()
        browser.see("The console does not answer: what you see is old", "#lost")
