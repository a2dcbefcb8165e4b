"""The page of connected clients."""

from typing import Any

import pytest

from tests.dashboard.browser import UNKNOWN, Browser
from tests.dashboard.fake_server import FakeQueue, FakeServer

pytestmark = pytest.mark.needs("chromium", "chromedriver")

CONNECTIONS: list[list[Any]] = [
    ["10.0.0.1:50000", "memcache", None, 1234, 2, None, 2048, 4096, 0, 5],
    ["a Unix socket", "text", None, 1, 0, r"gr\xf6n", None, None, 0, None],
    ["10.0.0.2:50000", "thrift", "CN=<b>orders</b>", 7, 100, None, 0, 0, 512, 61_000],
]


def test_clients_are_listed_with_open_reads_traffic_and_awaited_queue(driver: Browser, server: FakeServer) -> None:
    server.connections, server.queues = CONNECTIONS[:2], [FakeQueue(b"gr\xf6n", waiters=1)]
    driver.open_dashboard(server.url)
    driver.one("nav a[data-page=connections]").click()
    driver.wait_for_text("#connections-count", "2 clients")
    row = "#connections tbody tr:nth-child({}) td"
    told = ["10.0.0.1:50000", "memcache", UNKNOWN, UNKNOWN, "2", "1,234", "2 KiB", "4 KiB", "0 B", "5 ms"]
    assert driver.texts_of(row.format(1)) == told
    told = ["a Unix socket", "text", UNKNOWN, r"gr\xf6n", "0", "1", UNKNOWN, UNKNOWN, "0 B", UNKNOWN]
    assert driver.texts_of(row.format(2)) == told
    assert not driver.is_seen("#connections-all")
    driver.one("#connections tbody a").click()
    driver.wait_until(lambda: driver.text_of("#queue-waiters") == "1", "the queue that it waits for")
    driver.one("#queue-clients").click()
    driver.wait_for_text("#connections-count", r"1 client with open reads of gr\xf6n, or waiting for it")
    assert "/api/connections?first=0&queue=gr%f6n" in server.requests
    driver.one("#connections-all").click()
    driver.wait_for_text("#connections-count", "2 clients")
    assert driver.console_errors() == []


def test_many_clients_are_listed_page_by_page(driver: Browser, server: FakeServer) -> None:
    server.connections = CONNECTIONS
    driver.open_dashboard(server.url, "#/connections")
    driver.wait_for_text("#connections-count", "2 of 3 clients")
    driver.button_called("Next").click()
    driver.wait_for_text("#connections-count", "1 of 3 clients")
    assert driver.texts_of("#connections tbody td")[2] == "CN=<b>orders</b>"
    assert not driver.is_seen("#connections-next")
    driver.button_called("← Previous").click()
    driver.wait_for_text("#connections-count", "2 of 3 clients")
    assert not driver.is_seen("#connections-previous")
