"""The login with a token."""

import pytest

from tests.dashboard.browser import Browser
from tests.dashboard.fake_server import FakeQueue, FakeServer

pytestmark = pytest.mark.needs("chromium", "chromedriver")

TOKEN = "0123456789abcdef"


def log_in(driver: Browser, token: str) -> None:
    driver.button_called("Log in…").click()
    driver.wait_until(lambda: driver.is_seen("#login-dialog"), "the dialog")
    driver.one("#login-token").send_keys(token)
    driver.one("#login-do").click()


def test_token_grants_administration_until_logout(driver: Browser, server: FakeServer) -> None:
    server.token, server.queues = TOKEN, [FakeQueue(b"work", items=30)]
    driver.open_dashboard(server.url, "#/queue/work")
    driver.wait_until(lambda: driver.is_seen("#queue-reason"), "the reason why nothing can be changed")
    log_in(driver, TOKEN)
    driver.wait_until(lambda: driver.button_called("Flush…").is_enabled(), "the button is enabled")
    assert not driver.is_seen("#login")
    driver.refresh()
    driver.wait_until(lambda: driver.button_called("Flush…").is_enabled(), "the tab remembers the token")
    driver.button_called("Flush…").click()
    driver.confirm()
    driver.wait_for_text("[role=status]", "Done to work: flush.")
    driver.button_called("Log out").click()
    driver.wait_until(lambda: not driver.button_called("Flush…").is_enabled(), "the button is disabled")
    assert driver.is_seen("#login")
    assert driver.execute_script("return sessionStorage.length") == 0
    assert driver.console_errors() == []


def test_a_wrong_token_is_forgotten_with_a_notice(driver: Browser, server: FakeServer) -> None:
    server.token = TOKEN
    driver.open_dashboard(server.url)
    log_in(driver, "wrong")
    driver.wait_for_text("[role=status]", "The token is not valid.")
    driver.wait_until(lambda: driver.is_seen("#login") and not driver.is_seen("#away"), "the dashboard goes on")
    assert "bad" in driver.attribute("#said", "class")
    assert driver.execute_script("return sessionStorage.length") == 0


def test_a_server_without_tokens_has_no_login(driver: Browser, server: FakeServer) -> None:
    server.may_administer = False
    driver.open_dashboard(server.url)
    assert driver.text_of("#status") == "Status: Up"
    assert not driver.is_seen("#login, #logout")
