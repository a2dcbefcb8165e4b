"""The page of the server: its figures and actions."""

import pytest
from selenium.webdriver.common.by import By

from tests.dashboard.browser import Browser
from tests.dashboard.fake_server import FakeQueue, FakeServer

pytestmark = pytest.mark.needs("chromium", "chromedriver")


def open_server(driver: Browser, server: FakeServer) -> None:
    driver.open_dashboard(server.url, "#/server")
    driver.wait_until(lambda: driver.is_seen("#server-told"), "the server is shown")


def test_header_shows_the_server_and_its_status(driver: Browser, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"work", items=30, bytes=150, mem_bytes=512 * 2**20, waiters=1, puts_a_look=40)]
    driver.open_dashboard(server.url)
    driver.look_again()
    driver.wait_until(lambda: driver.text_of("#fact-puts") == "20", "puts per second")
    told = {
        "items": "30",
        "bytes": "150 B",
        "memory": "512 MiB",
        "memory-most": "of 1 GiB",
        "connections": "12",
        "version": "1.0.0",
        "build": "compiled",
        "storage": "journal:/var/spool/kestrel",
        "uptime": "1 d 2 h",
        "waiters": "1 client waiting",
    }
    assert {key: driver.text_of(f"#fact-{key}") for key in told} == told
    assert driver.text_of("#server-name") == "kestrel.example.org"
    assert driver.text_of("#status") == "Status: Up"
    assert driver.attribute("#memory-meter", "aria-valuenow") == "50"


def test_memory_without_a_limit_has_no_meter(driver: Browser, server: FakeServer) -> None:
    server.max_total_memory = None
    driver.open_dashboard(server.url)
    assert driver.text_of("#fact-memory") == "0 B"
    assert driver.text_of("#fact-memory-most") == ""
    assert not driver.is_seen("#memory-meter")


def test_each_status_can_be_set_after_a_question(driver: Browser, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"work")]
    open_server(driver, server)
    for status in ("WriteAvoid", "ReadOnly", "Quiescent", "Up"):
        driver.one(f"button[data-status={status}]").click()
        assert f"Set the status to {status}?" in driver.confirm()
        driver.wait_for_text("[role=status]", f"The status is {status}.")
        driver.wait_until(lambda status=status: driver.text_of("#status-text") == status, "the header says it")
        pressed = driver.find_elements(By.CSS_SELECTOR, "button[data-status][aria-pressed=true]")
        assert [each.get_dom_attribute("data-status") for each in pressed] == [status]
    assert server.posts == [f"/api/status/{each}" for each in ("WriteAvoid", "ReadOnly", "Quiescent", "Up")]
    assert driver.console_errors() == []


def test_announced_status_is_shown_with_the_effective_one(driver: Browser, server: FakeServer) -> None:
    server.status, server.in_force = "Quiescent", "Up"
    open_server(driver, server)
    assert driver.text_of("#status-text") == "Quiescent announced; Up still in force"


def test_reload_asks_first_and_shows_the_result(driver: Browser, server: FakeServer) -> None:
    server.refusals["/api/reload"] = (409, "kestrel.toml, line 3: maxItems must be a number")
    open_server(driver, server)
    driver.button_called("Reload").click()
    driver.confirm()
    driver.wait_for_text("[role=status]", "kestrel.toml, line 3: maxItems must be a number")
    assert server.posts == ["/api/reload"]


@pytest.mark.parametrize(
    ("storage", "said"),
    [
        ("journal:/var/spool/kestrel", "The 30 items in its queues will be available after the next start."),
        ("memory", "Its queues are only in memory: all 30 items will be lost."),
    ],
    ids=["journal", "memory"],
)
def test_shutdown_explains_the_effect_on_clients_and_items(
    driver: Browser, server: FakeServer, storage: str, said: str
) -> None:
    server.queues = [FakeQueue(b"work", items=30)]
    server.storage = storage
    open_server(driver, server)
    driver.button_called("Shut down").click()
    asked = driver.confirm()
    assert "disconnect 12 clients" in asked
    assert said in asked
    driver.wait_until(lambda: server.posts == ["/api/shutdown"], "the server is told")


def test_other_users_can_change_nothing(driver: Browser, server: FakeServer) -> None:
    server.may_administer = False
    open_server(driver, server)
    assert driver.is_seen("#server-reason")
    buttons = driver.find_elements(By.CSS_SELECTOR, "#server button")
    assert len(buttons) == 6
    assert not any(each.is_enabled() for each in buttons)


def test_latencies_and_settings_of_the_server_are_shown(driver: Browser, server: FakeServer) -> None:
    open_server(driver, server)
    assert driver.text_of("#server-latencies tbody tr th") == "Put"
    assert driver.text_of("#server-settings [data-key=maxTotalMemory] dd") == "1 GiB"
    assert driver.text_of("#server-figures [data-key=curr_connections] dt") == "Connections"
