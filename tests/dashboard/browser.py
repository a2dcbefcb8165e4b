"""A real browser for tests of the dashboard. It waits for conditions and does not sleep.

It needs the programs chromium and chromedriver; a test that uses it is marked `needs("chromium", "chromedriver")`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from selenium.common.exceptions import JavascriptException, NoSuchElementException, StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from tests.child import PATIENCE_S

T = TypeVar("T")

UNKNOWN: Final = "\N{EN DASH}"
"""The text of an unknown figure."""

WIDTH: Final = 1280
HEIGHT: Final = 900

ARGUMENTS: Final = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-default-apps"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb", f"--window-size={WIDTH},{HEIGHT}"),
)
"""No sandbox, because root may run the tests. No requests to the internet. No more memory than containers have."""


class Browser(Chrome):
    """A browser at the dashboard."""

    def wait_until(self, condition: Callable[[], T], what: str) -> T:
        """Return the result of the condition once it is true. Fail if it stays false, or its element stays missing."""
        ignored = (NoSuchElementException, StaleElementReferenceException, JavascriptException)
        waiting = WebDriverWait(self, PATIENCE_S, poll_frequency=0.03, ignored_exceptions=ignored)
        return waiting.until(lambda _: condition(), f"after {PATIENCE_S} s still not: {what}")

    def open_dashboard(self, url: str, fragment: str = "#/") -> None:
        """Load the page of the dashboard that the fragment names, and wait until it shows the server."""
        if self.current_url.startswith(url):
            self.get("about:blank")  # another fragment alone would load nothing
        self.get(f"{url}/{fragment}")
        self.wait_until(lambda: "loading" not in self.body_classes(), "the dashboard shows the server")

    def look_again(self) -> None:
        """Make the dashboard ask the server now, as it does when the machine is online again."""
        self.execute_script("dispatchEvent(new Event('online'))")

    def body_classes(self) -> list[str]:
        return str(self.execute_script("return document.body.className")).split()

    def one(self, selector: str) -> WebElement:
        """Return the first element of a CSS selector."""
        return self.find_element(By.CSS_SELECTOR, selector)

    def text_of(self, selector: str) -> str:
        """Return the text of the first element, visible or not; empty if there is no such element."""
        return str(self.execute_script("return document.querySelector(arguments[0])?.textContent ?? ''", selector))

    def texts_of(self, selector: str) -> list[str]:
        """Return the texts of all elements of a selector, in the order of the document."""
        script = "return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent)"
        return [str(text) for text in self.execute_script(script, selector)]

    def wait_for_text(self, selector: str, text: str) -> None:
        """Wait until the text of the element contains `text`."""
        self.wait_until(lambda: text in self.text_of(selector), f"{text!r} in {selector}")

    def is_seen(self, selector: str) -> bool:
        """Return whether there is such an element that takes up room on the page."""
        script = "return [...document.querySelectorAll(arguments[0])].some((each) => each.getClientRects().length > 0)"
        return bool(self.execute_script(script, selector))

    def attribute(self, selector: str, name: str) -> str:
        """Return an attribute of the first element; empty if it has none."""
        script = "return document.querySelector(arguments[0]).getAttribute(arguments[1]) ?? ''"
        return str(self.execute_script(script, selector, name))

    def button_called(self, name: str) -> WebElement:
        """Return the visible button whose text begins with `name`."""
        script = """
            return [...document.querySelectorAll("button")].find(
                (each) => each.getClientRects().length > 0 && each.textContent.startsWith(arguments[0]),
            );
        """
        button = self.execute_script(script, name)
        if not isinstance(button, WebElement):
            raise NoSuchElementException(f"no button {name!r} is seen")
        return button

    def press(self, *keys: str) -> None:
        """Press keys in the focused element."""
        self.switch_to.active_element.send_keys(*keys)

    def focused_text(self) -> str:
        """Return the text of the focused element."""
        return str(self.execute_script("return document.activeElement.textContent"))

    def column(self, label: str) -> list[str]:
        """Return the cells of a column of the table of queues, for the rows in the document."""
        script = """
            const table = document.querySelector("table.queues");
            const heads = [...table.tHead.rows[0].cells];
            const label = (head) => (head.querySelector("button") ?? head).firstChild.data;
            const at = heads.findIndex((each) => label(each) === arguments[0]);
            return [...table.querySelectorAll("tbody tr[data-name]")].map((row) => row.cells[at].textContent);
        """
        return [str(text) for text in self.execute_script(script, label)]

    def sorted_by(self) -> dict[str, str]:
        """Return the columns that the table of queues is sorted by, with the direction."""
        script = """
            const heads = [...document.querySelectorAll("table.queues thead th[aria-sort]")];
            return Object.fromEntries(heads.map((each) => [each.firstChild.firstChild.data, each.ariaSort]));
        """
        return dict(self.execute_script(script))

    def confirm(self) -> str:
        """Confirm the question of the open dialog, and return its text."""
        self.wait_until(lambda: self.is_seen("dialog[open]"), "the question is asked")
        asked = str(self.execute_script("return document.querySelector('dialog[open]').innerText"))
        self.one("#ask-do").click()
        return asked

    def evaluate(self, module: str, expression: str, *arguments: Any) -> Any:
        """Return the value of an expression, with a module of the dashboard as `it` and the arguments as `args`."""
        script = """
            const [path, args, done] = arguments;
            import(path).then(async (it) => {
                done(JSON.stringify({ value: await (EXPRESSION) }));
            }).catch((error) => done(JSON.stringify({ error: String(error) })));
        """
        script = script.replace("EXPRESSION", expression)
        answer = json.loads(self.execute_async_script(script, f"/pages/{module}", list(arguments)))
        assert "error" not in answer, answer["error"]
        return answer["value"]

    def console_errors(self) -> list[str]:
        """Return the errors and warnings in the browser's console since the last call."""
        return [str(entry["message"]) for entry in self.get_log("browser") if entry["level"] in {"SEVERE", "WARNING"}]

    def set_window(self, width: int, height: int, *, dark: bool) -> None:
        """Set the size of the page in pixels, and whether the system prefers a dark page."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def settle(self) -> None:
        """Wait until all changes are drawn and all animations have ended."""
        self.execute_async_script("""
            const done = arguments[0];
            requestAnimationFrame(() => requestAnimationFrame(async () => {
                await Promise.allSettled(document.getAnimations().map((each) => each.finished));
                done();
            }));
        """)

    def save_page(self, path: Path, width: int, height: int, dark: bool) -> None:
        """Save a picture of the page in a window of that many pixels as PNG."""
        self.set_window(width, height, dark=dark)
        self.settle()
        assert self.save_screenshot(str(path))


@contextmanager
def started_browser(profile: Path) -> Iterator[Browser]:
    """Start a headless Chromium with an empty profile in that folder, and close it at the end."""
    options = ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for argument in (*ARGUMENTS, f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Browser(options=options, service=Service(str(shutil.which("chromedriver"))))
    try:
        driver.set_script_timeout(PATIENCE_S)
        driver.set_page_load_timeout(PATIENCE_S)
        yield driver
    finally:
        driver.quit()
