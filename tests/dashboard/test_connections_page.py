"""The page of connected clients."""

from typing import Any

import pytest
from selenium.webdriver import Chrome

from tests.dashboard.browser import (
    UNKNOWN,
    button_called,
    console_errors,
    is_seen,
    one,
    open_dashboard,
    text_of,
    texts_of,
    wait_for_text,
    wait_until,
)
from tests.dashboard.fake_server import FakeQueue, FakeServer

pytestmark = pytest.mark.needs("chromium", "chromedriver")

CONNECTIONS: list[list[Any]] = [
    ["10.0.0.1:50000", "memcache", None, 1234, 2, None, 2048, 4096, 0, 5],
    ["a Unix socket", "text", None, 1, 0, r"gr\xf6n", None, None, 0, None],
    ["10.0.0.2:50000", "thrift", "CN=<b>orders</b>", 7, 100, None, 0, 0, 512, 61_000],
]


def test_clients_are_listed_with_open_reads_traffic_and_awaited_queue(driver: Chrome, server: FakeServer) -> None:
    server.connections, server.queues = CONNECTIONS[:2], [FakeQueue(b"gr\xf6n", waiters=1)]
    open_dashboard(driver, server.url)
    one(driver, "nav a[data-page=connections]").click()
    wait_for_text(driver, "#connections-count", "2 clients")
    row = "#connections tbody tr:nth-child({}) td"
    told = ["10.0.0.1:50000", "memcache", UNKNOWN, UNKNOWN, "2", "1,234", "2 KiB", "4 KiB", "0 B", "5 ms"]
    assert texts_of(driver, row.format(1)) == told
    told = ["a Unix socket", "text", UNKNOWN, r"gr\xf6n", "0", "1", UNKNOWN, UNKNOWN, "0 B", UNKNOWN]
    assert texts_of(driver, row.format(2)) == told
    assert not is_seen(driver, "#connections-all")
    one(driver, "#connections tbody a").click()
    wait_until(driver, lambda: text_of(driver, "#queue-waiters") == "1", "the queue that it waits for")
    one(driver, "#queue-clients").click()
    wait_for_text(driver, "#connections-count", r"1 client with open reads of gr\xf6n, or waiting for it")
    assert "/api/connections?first=0&queue=gr%f6n" in server.requests
    one(driver, "#connections-all").click()
    wait_for_text(driver, "#connections-count", "2 clients")
    assert console_errors(driver) == []


def test_many_clients_are_listed_page_by_page(driver: Chrome, server: FakeServer) -> None:
    server.connections = CONNECTIONS
    open_dashboard(driver, server.url, "#/connections")
    wait_for_text(driver, "#connections-count", "2 of 3 clients")
    button_called(driver, "Next").click()
    wait_for_text(driver, "#connections-count", "1 of 3 clients")
    assert texts_of(driver, "#connections tbody td")[2] == "CN=<b>orders</b>"
    assert not is_seen(driver, "#connections-next")
    button_called(driver, "← Previous").click()
    wait_for_text(driver, "#connections-count", "2 of 3 clients")
    assert not is_seen(driver, "#connections-previous")
