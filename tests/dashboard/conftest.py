"""A browser for all tests of a process, and a made-up server for each."""

from collections.abc import Iterator

import pytest
from selenium.webdriver import Chrome

from tests.dashboard.browser import HEIGHT, WIDTH, console_errors, set_window, started_browser
from tests.dashboard.fake_server import FakeServer


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with started_browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def driver(browser: Chrome) -> Iterator[Chrome]:
    """The browser in its usual window, with nothing left of the test before."""
    set_window(browser, WIDTH, HEIGHT, dark=False)
    console_errors(browser)
    yield browser
    browser.get("about:blank")


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server
