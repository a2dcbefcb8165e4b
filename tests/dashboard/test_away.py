"""A server that is away, or refuses to be looked at: the page says so, and goes on when it is back."""

import pytest
from selenium.webdriver import Chrome

from tests.dashboard.browser import (
    body_classes,
    button_called,
    column,
    confirm,
    evaluate,
    is_seen,
    look_again,
    open_dashboard,
    text_of,
    wait_for_text,
    wait_until,
)
from tests.dashboard.fake_server import FakeQueue, FakeServer

pytestmark = pytest.mark.needs("chromium", "chromedriver")


def test_a_server_that_goes_away_is_told_of_and_comes_back(driver: Chrome, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"work", items=30)]
    open_dashboard(driver, server.url)
    wait_until(driver, lambda: column(driver, "Items") == ["30"], "the queue")
    assert not is_seen(driver, "#away")
    server.go_away()
    look_again(driver)
    wait_until(driver, lambda: is_seen(driver, "[role=alert] #away"), "the banner")
    assert text_of(driver, "#away").startswith("No response from the server since ")
    assert text_of(driver, "#away").endswith("; trying again")
    assert "away" in body_classes(driver)
    assert column(driver, "Items") == ["30"]
    server.queues[0].items = 31
    server.come_back()
    wait_until(driver, lambda: column(driver, "Items") == ["31"], "it goes on")
    wait_until(driver, lambda: not is_seen(driver, "#away"), "the banner is gone")
    assert "away" not in body_classes(driver)


def test_what_cannot_be_sent_is_said(driver: Chrome, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"work", items=30)]
    open_dashboard(driver, server.url, "#/queue/work")
    wait_until(driver, lambda: is_seen(driver, "#queue-there"), "the queue")
    server.go_away()
    button_called(driver, "Flush…").click()
    confirm(driver)
    wait_for_text(driver, "[role=status]", "The server does not respond.")


def test_a_server_that_refuses_to_be_looked_at_is_quoted(driver: Chrome, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"work", items=30)]
    open_dashboard(driver, server.url)
    with server.lock:
        server.refusals["/api/overview"] = (503, "The queues are still being loaded.")
    look_again(driver)
    wait_until(driver, lambda: is_seen(driver, "#away"), "the banner")
    assert text_of(driver, "#away") == "The queues are still being loaded; trying again"
    with server.lock:
        server.refusals.clear()
    wait_until(driver, lambda: not is_seen(driver, "#away"), "the banner is gone")


def test_a_part_that_is_refused_is_told_of_and_the_rest_is_shown(driver: Chrome, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"work", items=30)]
    server.refusals["/api/history"] = (503, "the history is not available")
    open_dashboard(driver, server.url)
    wait_until(driver, lambda: is_seen(driver, "#away"), "the banner")
    assert text_of(driver, "#away") == "the history is not available; trying again"
    assert "away" not in body_classes(driver)
    assert column(driver, "Items") == ["30"]
    with server.lock:
        server.queues[0].items = 31
    look_again(driver)
    wait_until(driver, lambda: column(driver, "Items") == ["31"], "it goes on")
    assert is_seen(driver, "#away")
    with server.lock:
        server.refusals.clear()
    look_again(driver)
    wait_until(driver, lambda: not is_seen(driver, "#away"), "nothing is missing any more")


POLLING = """(async () => {
    const [setTimer, clearTimer] = [setTimeout, clearTimeout];
    const told = [];
    let due = null;
    window.setTimeout = (run, pause) => { told.push(pause); due = run; };
    window.clearTimeout = () => { due = null; };
    const hide = (isHidden) => {
        Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    };
    const rest = async () => { for (let turn = 0; turn < 20; turn += 1) await null; };
    try {
        let isAnswering = true;
        it.poll(async () => { told.push("asks"); if (!isAnswering) throw new Error("away"); }, () => 2000);
        await rest();
        for (const step of args) {
            if (step === "timer") { const run = due; due = null; run?.(); }
            if (step === "away" || step === "back") isAnswering = step === "back";
            if (step === "hide" || step === "show") hide(step === "hide");
            await rest();
        }
    } finally {
        [window.setTimeout, window.clearTimeout] = [setTimer, clearTimer];
    }
    return told;
})()"""


def polled(driver: Chrome, server: FakeServer, *steps: str) -> list[str | int]:
    """When the server is asked, and the pauses in milliseconds, while that happens on a page of which it is all."""
    driver.get(f"{server.url}/pages/dashboard.css")
    told: list[str | int] = evaluate(driver, "polling.js", POLLING, *steps)
    return told


def test_a_server_that_is_away_is_asked_less_and_less_often(driver: Chrome, server: FakeServer) -> None:
    told = polled(driver, server, "timer", "away", *["timer"] * 6, "back", *["timer"] * 2)
    assert told[:4] == ["asks", 2000, "asks", 2000]
    assert told[4:16] == ["asks", 1000, "asks", 2000, "asks", 4000, "asks", 8000, "asks", 15000, "asks", 15000]
    assert told[16:] == ["asks", 2000, "asks", 2000]


def test_nothing_is_asked_while_nobody_looks_and_at_once_when_somebody_does(driver: Chrome, server: FakeServer) -> None:
    assert polled(driver, server, "hide", "timer", "timer") == ["asks", 2000]
    assert polled(driver, server, "hide", "timer", "show", "timer") == ["asks", 2000, "asks", 2000, "asks", 2000]
