"""A browser for all tests of a process, and a fake server for each test."""

from collections.abc import Iterator

import pytest

from tests.dashboard.browser import HEIGHT, WIDTH, Browser, started_browser
from tests.dashboard.fake_server import FakeServer


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with started_browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def driver(browser: Browser) -> Iterator[Browser]:
    """Provide the browser in its usual window, without messages of earlier tests."""
    browser.set_window(WIDTH, HEIGHT, dark=False)
    browser.console_errors()
    yield browser
    browser.get("about:blank")


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server
