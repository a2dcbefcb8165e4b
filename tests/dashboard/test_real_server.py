"""The dashboard of a real server, in a real browser."""

import re

import pytest
from selenium.webdriver import Chrome

from tests.dashboard.browser import (
    button_called,
    column,
    confirm,
    console_errors,
    is_seen,
    look_again,
    one,
    open_dashboard,
    text_of,
    texts_of,
    wait_for_text,
    wait_until,
)
from tests.server.running import Processes, Server

pytestmark = pytest.mark.needs("chromium", "chromedriver")

MANY = 2000


def url_of(server: Server) -> str:
    return f"http://127.0.0.1:{server.port_of('admin')}"


def test_a_queue_is_seen_opened_and_flushed(driver: Chrome, processes: Processes) -> None:
    server = processes.serve("[admin]\npeek = true\n")
    with server.connect() as client:
        for item in (b"first", b"second", b"third"):
            client.put(b"work", item)
        open_dashboard(driver, url_of(server))
        wait_until(driver, lambda: column(driver, "Items") == ["3"], "its items")
        open_dashboard(driver, url_of(server), "#/queue/work")
        wait_until(driver, lambda: is_seen(driver, "#queue-there"), "the queue is shown")
        button_called(driver, "Show the items").click()
        wait_for_text(driver, "#items-list", "second")
        button_called(driver, "Flush…").click()
        assert "3 items" in confirm(driver)
        wait_for_text(driver, "[role=status]", "3 items of work were flushed")
        assert client.get(b"work") is None
    assert console_errors(driver) == []


def test_an_item_is_put_and_moved_and_its_reader_is_listed(driver: Chrome, processes: Processes) -> None:
    server = processes.serve()
    with server.connect() as client:
        client.put(b"errors", b"first")
        client.put(b"work", b"before")
        open_dashboard(driver, url_of(server), "#/queue/errors")
        wait_until(driver, lambda: is_seen(driver, "#queue-there"), "the queue is shown")
        one(driver, "#put-data").send_keys("second")
        one(driver, "#put-do").click()
        wait_for_text(driver, "[role=status]", "6 bytes were put to errors")
        one(driver, "#move-to").send_keys("work")
        button_called(driver, "Move…").click()
        confirm(driver)
        wait_for_text(driver, "#move-text", "2 of 2 items moved to work")
        assert [client.get(b"work") for _ in range(3)] == [b"before", b"first", b"second"]
        open_dashboard(driver, url_of(server), "#/connections")
        wait_for_text(driver, "#connections-count", "1 client")
        address, protocol, _, _, _, requests, received, *_ = texts_of(driver, "#connections tbody td")
        assert (address.partition(":")[0], protocol, requests) == ("127.0.0.1", "memcache", "5")
        assert received.endswith(" B") and received != "0 B"
    assert console_errors(driver) == []


@pytest.mark.parametrize(
    ("name", "shown"), [("größe".encode(), "größe"), (b"gr\xf6\xdfe", r"gr\xf6\xdfe"), (rb"gr\xf6", r"gr\\xf6")]
)
def test_name_of_any_bytes_leads_to_its_queue(driver: Chrome, processes: Processes, name: bytes, shown: str) -> None:
    server = processes.serve()
    with server.connect() as client:
        client.put(name, b"first")
    open_dashboard(driver, url_of(server))
    link = wait_until(driver, lambda: one(driver, "tr[data-name] a"), "the row")
    assert text_of(driver, "tr[data-name] a") == shown
    link.click()
    wait_until(driver, lambda: text_of(driver, "#queue-items") == "1", "its items")
    assert text_of(driver, "#queue-title") == shown
    button_called(driver, "Delete…").click()
    assert f"The queue {shown} and the only item in it will be deleted" in confirm(driver)
    wait_for_text(driver, "[role=status]", f"{shown} was deleted")
    assert console_errors(driver) == []


def test_two_thousand_queues_are_shown_and_the_last_is_found(driver: Chrome, processes: Processes) -> None:
    server = processes.serve()
    with server.connect() as client:
        client.send(b"".join(b"set queue-%04d 0 0 1\r\nx\r\n" % number for number in range(MANY)))
        client.receive(len(b"STORED\r\n") * MANY)
    open_dashboard(driver, url_of(server))
    wait_for_text(driver, "main", "2,000 queues")
    open_dashboard(driver, url_of(server), f"#/queue/queue-{MANY - 1}")
    wait_until(driver, lambda: text_of(driver, "#queue-items") == "1", "the last queue's items")
    assert console_errors(driver) == []


def test_a_server_that_stops_is_away_and_one_that_comes_back_is_there(driver: Chrome, processes: Processes) -> None:
    server = processes.serve()
    port = server.port_of("admin")
    open_dashboard(driver, url_of(server))
    server.stop()
    look_again(driver)
    wait_until(driver, lambda: re.search("No response from the server since", text_of(driver, "body")), "it is away")
    processes.serve("", "--admin", f"tcp:{port}:interface=127.0.0.1")
    look_again(driver)
    wait_until(driver, lambda: not is_seen(driver, "#away"), "it is back")
