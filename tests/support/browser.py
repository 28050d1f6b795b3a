"""A real, headless Chromium with a profile of its own; its console must stay empty."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from support.missing import cannot_run
from support.waiting import wait_until

OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
MISSING = "no chromium and chromedriver here: sudo apt-get install chromium chromium-driver"
A = TypeVar("A")


def programs() -> tuple[str, str]:
    """Of Chromium and of its driver. Without them the test cannot run: `make setup` has said why it
    could not install them."""
    found = shutil.which("chromium"), shutil.which("chromedriver")
    if found[0] is None or found[1] is None:
        cannot_run(MISSING)
    return found[0], found[1]


class Browser:
    """One window. Elements are found by CSS selectors."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        self.driver.get(url)

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element("css selector", selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements("css selector", selector)

    def text(self, selector: str = "body") -> str:
        return self.find(selector).text

    def see(self, text: str, selector: str = "body") -> str:
        """Waits until the text is there; what the element says then."""

        def seen() -> str | None:
            found = self.text(selector)
            return found if text in found else None

        return wait_until(lambda: _patient(seen), what=f"the page says {text!r}")

    def click(self, selector: str) -> None:
        """Once it is there; a refresh may replace it before it is hit."""

        def clicked() -> bool:
            self.find(selector).click()
            return True

        wait_until(lambda: _patient(clicked), what=f"{selector} is clicked")

    def press(self, *keys: str) -> None:
        """On whatever has the keyboard, also if a refresh has just replaced it."""
        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def has_keyboard(self, what: str = "textContent") -> str:
        """A property of what has it, in one look: a refresh may replace it between two."""
        return str(self.run(f"return document.activeElement.{what} || ''")).strip()

    def tab_to(self, text: str) -> None:
        """By the Tab key alone, to the link or button with this text."""
        for _ in range(60):
            self.press(Keys.TAB)
            if self.has_keyboard() == text:
                return
        raise AssertionError(f"the Tab key does not reach {text!r}")

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def complaints(self) -> list[str]:
        """What the browser's console has said since the last call."""
        return [str(one["message"]) for one in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]


def _patient(look: Callable[[], A]) -> A | None:
    """None if the page was just replaced."""
    try:
        return look()
    except WebDriverException:
        return None


@contextmanager
def browsing(profile: Path, width: int = 1280, height: int = 900) -> Iterator[Browser]:
    """A browser that ends with the block; `profile` does not exist yet."""
    chromium, chromedriver = programs()
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for one in (*OPTIONS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
        options.add_argument(one)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service(chromedriver))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
