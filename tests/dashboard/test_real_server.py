"""The dashboard of a real server, in a real browser."""

import re

import pytest

from tests.dashboard.browser import Browser
from tests.server.running import Processes, Server

pytestmark = pytest.mark.needs("chromium", "chromedriver")

MANY = 2000


def url_of(server: Server) -> str:
    return f"http://127.0.0.1:{server.port_of('admin')}"


def test_queue_is_listed_opened_and_flushed(driver: Browser, processes: Processes) -> None:
    server = processes.serve("[admin]\npeek = true\n")
    with server.connect() as client:
        for item in (b"first", b"second", b"third"):
            client.put(b"work", item)
        driver.open_dashboard(url_of(server))
        driver.wait_until(lambda: driver.column("Items") == ["3"], "its items")
        driver.open_dashboard(url_of(server), "#/queue/work")
        driver.wait_until(lambda: driver.is_seen("#queue-there"), "the queue is shown")
        driver.button_called("Show the items").click()
        driver.wait_for_text("#items-list", "second")
        driver.button_called("Flush…").click()
        assert "3 items" in driver.confirm()
        driver.wait_for_text("[role=status]", "3 items of work were flushed")
        assert client.get(b"work") is None
    assert driver.console_errors() == []


def test_item_is_put_moved_and_its_reader_listed(driver: Browser, processes: Processes) -> None:
    server = processes.serve()
    with server.connect() as client:
        client.put(b"errors", b"first")
        client.put(b"work", b"before")
        driver.open_dashboard(url_of(server), "#/queue/errors")
        driver.wait_until(lambda: driver.is_seen("#queue-there"), "the queue is shown")
        driver.one("#put-data").send_keys("second")
        driver.one("#put-do").click()
        driver.wait_for_text("[role=status]", "6 bytes were put to errors")
        driver.one("#move-to").send_keys("work")
        driver.button_called("Move…").click()
        driver.confirm()
        driver.wait_for_text("#move-text", "2 of 2 items moved to work")
        assert [client.get(b"work") for _ in range(3)] == [b"before", b"first", b"second"]
        driver.open_dashboard(url_of(server), "#/connections")
        driver.wait_for_text("#connections-count", "1 client")
        address, protocol, _, _, _, requests, received, *_ = driver.texts_of("#connections tbody td")
        assert (address.partition(":")[0], protocol, requests) == ("127.0.0.1", "memcache", "5")
        assert received.endswith(" B") and received != "0 B"
    assert driver.console_errors() == []


@pytest.mark.parametrize(
    ("name", "shown"), [("größe".encode(), "größe"), (b"gr\xf6\xdfe", r"gr\xf6\xdfe"), (rb"gr\xf6", r"gr\\xf6")]
)
def test_name_of_any_bytes_leads_to_its_queue(driver: Browser, processes: Processes, name: bytes, shown: str) -> None:
    server = processes.serve()
    with server.connect() as client:
        client.put(name, b"first")
    driver.open_dashboard(url_of(server))
    link = driver.wait_until(lambda: driver.one("tr[data-name] a"), "the row")
    assert driver.text_of("tr[data-name] a") == shown
    link.click()
    driver.wait_until(lambda: driver.text_of("#queue-items") == "1", "its items")
    assert driver.text_of("#queue-title") == shown
    driver.button_called("Delete…").click()
    assert f"The queue {shown} and the only item in it will be deleted" in driver.confirm()
    driver.wait_for_text("[role=status]", f"{shown} was deleted")
    assert driver.console_errors() == []


def test_two_thousand_queues_are_shown_and_the_last_is_found(driver: Browser, processes: Processes) -> None:
    server = processes.serve()
    with server.connect() as client:
        client.send(b"".join(b"set queue-%04d 0 0 1\r\nx\r\n" % number for number in range(MANY)))
        client.receive(len(b"STORED\r\n") * MANY)
    driver.open_dashboard(url_of(server))
    driver.wait_for_text("main", "2,000 queues")
    driver.open_dashboard(url_of(server), f"#/queue/queue-{MANY - 1}")
    driver.wait_until(lambda: driver.text_of("#queue-items") == "1", "the last queue's items")
    assert driver.console_errors() == []


def test_restarted_server_is_shown_again(driver: Browser, processes: Processes) -> None:
    server = processes.serve()
    port = server.port_of("admin")
    driver.open_dashboard(url_of(server))
    server.stop()
    driver.look_again()
    driver.wait_until(lambda: re.search("No response from the server since", driver.text_of("body")), "it is away")
    processes.serve("", "--admin", f"tcp:{port}:interface=127.0.0.1")
    driver.look_again()
    driver.wait_until(lambda: not driver.is_seen("#away"), "it is back")
