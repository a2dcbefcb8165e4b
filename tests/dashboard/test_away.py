"""A server that is away or refuses a request: the page reports it, and continues when it is back."""

import pytest

from tests.dashboard.browser import Browser
from tests.dashboard.fake_server import FakeQueue, FakeServer

pytestmark = pytest.mark.needs("chromium", "chromedriver")


def test_an_unreachable_server_is_reported_until_it_is_back(driver: Browser, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"work", items=30)]
    driver.open_dashboard(server.url)
    driver.wait_until(lambda: driver.column("Items") == ["30"], "the queue")
    assert not driver.is_seen("#away")
    server.go_away()
    driver.look_again()
    driver.wait_until(lambda: driver.is_seen("[role=alert] #away"), "the banner")
    assert driver.text_of("#away").startswith("No response from the server since ")
    assert driver.text_of("#away").endswith("; trying again")
    assert "away" in driver.body_classes()
    assert driver.column("Items") == ["30"]
    server.queues[0].items = 31
    server.come_back()
    driver.wait_until(lambda: driver.column("Items") == ["31"], "it goes on")
    driver.wait_until(lambda: not driver.is_seen("#away"), "the banner is gone")
    assert "away" not in driver.body_classes()


def test_an_invalid_name_is_reported(driver: Browser, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"work", items=30)]
    driver.open_dashboard(server.url, "#/queue/work")
    driver.wait_until(lambda: driver.is_seen("#queue-there"), "the queue")
    server.go_away()
    driver.button_called("Flush…").click()
    driver.confirm()
    driver.wait_for_text("[role=status]", "The server does not respond.")


def test_the_reason_of_a_refused_request_is_shown(driver: Browser, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"work", items=30)]
    driver.open_dashboard(server.url)
    with server.lock:
        server.refusals["/api/overview"] = (503, "The queues are still being loaded.")
    driver.look_again()
    driver.wait_until(lambda: driver.is_seen("#away"), "the banner")
    assert driver.text_of("#away") == "The queues are still being loaded; trying again"
    with server.lock:
        server.refusals.clear()
    driver.wait_until(lambda: not driver.is_seen("#away"), "the banner is gone")


def test_a_refused_part_is_reported_and_the_rest_is_shown(driver: Browser, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"work", items=30)]
    server.refusals["/api/history"] = (503, "the history is not available")
    driver.open_dashboard(server.url)
    driver.wait_until(lambda: driver.is_seen("#away"), "the banner")
    assert driver.text_of("#away") == "the history is not available; trying again"
    assert "away" not in driver.body_classes()
    assert driver.column("Items") == ["30"]
    with server.lock:
        server.queues[0].items = 31
    driver.look_again()
    driver.wait_until(lambda: driver.column("Items") == ["31"], "it goes on")
    assert driver.is_seen("#away")
    with server.lock:
        server.refusals.clear()
    driver.look_again()
    driver.wait_until(lambda: not driver.is_seen("#away"), "nothing is missing any more")


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


def polled(driver: Browser, server: FakeServer, *steps: str) -> list[str | int]:
    """Return the times of requests and the pauses in milliseconds while the page is used so."""
    driver.get(f"{server.url}/pages/dashboard.css")
    told: list[str | int] = driver.evaluate("polling.js", POLLING, *steps)
    return told


def test_an_unreachable_server_is_asked_less_often(driver: Browser, server: FakeServer) -> None:
    told = polled(driver, server, "timer", "away", *["timer"] * 6, "back", *["timer"] * 2)
    assert told[:4] == ["asks", 2000, "asks", 2000]
    assert told[4:16] == ["asks", 1000, "asks", 2000, "asks", 4000, "asks", 8000, "asks", 15000, "asks", 15000]
    assert told[16:] == ["asks", 2000, "asks", 2000]


def test_hidden_page_asks_nothing_and_shown_page_asks_at_once(driver: Browser, server: FakeServer) -> None:
    assert polled(driver, server, "hide", "timer", "timer") == ["asks", 2000]
    assert polled(driver, server, "hide", "timer", "show", "timer") == ["asks", 2000, "asks", 2000, "asks", 2000]
