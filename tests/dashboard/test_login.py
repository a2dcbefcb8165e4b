"""The login with a token."""

import pytest
from selenium.webdriver import Chrome

from tests.dashboard.browser import (
    attribute,
    button_called,
    confirm,
    console_errors,
    is_seen,
    one,
    open_dashboard,
    text_of,
    wait_for_text,
    wait_until,
)
from tests.dashboard.fake_server import FakeQueue, FakeServer

pytestmark = pytest.mark.needs("chromium", "chromedriver")

TOKEN = "0123456789abcdef"


def log_in(driver: Chrome, token: str) -> None:
    button_called(driver, "Log in…").click()
    wait_until(driver, lambda: is_seen(driver, "#login-dialog"), "the dialog")
    one(driver, "#login-token").send_keys(token)
    one(driver, "#login-do").click()


def test_a_token_makes_the_user_an_administrator_until_the_log_out(driver: Chrome, server: FakeServer) -> None:
    server.token, server.queues = TOKEN, [FakeQueue(b"work", items=30)]
    open_dashboard(driver, server.url, "#/queue/work")
    wait_until(driver, lambda: is_seen(driver, "#queue-reason"), "the reason why nothing can be changed")
    log_in(driver, TOKEN)
    wait_until(driver, lambda: button_called(driver, "Flush…").is_enabled(), "the button is enabled")
    assert not is_seen(driver, "#login")
    driver.refresh()
    wait_until(driver, lambda: button_called(driver, "Flush…").is_enabled(), "the tab remembers the token")
    button_called(driver, "Flush…").click()
    confirm(driver)
    wait_for_text(driver, "[role=status]", "Done to work: flush.")
    button_called(driver, "Log out").click()
    wait_until(driver, lambda: not button_called(driver, "Flush…").is_enabled(), "the button is disabled")
    assert is_seen(driver, "#login")
    assert driver.execute_script("return sessionStorage.length") == 0
    assert console_errors(driver) == []


def test_a_wrong_token_is_forgotten_with_a_notice(driver: Chrome, server: FakeServer) -> None:
    server.token = TOKEN
    open_dashboard(driver, server.url)
    log_in(driver, "wrong")
    wait_for_text(driver, "[role=status]", "The token is not valid.")
    wait_until(driver, lambda: is_seen(driver, "#login") and not is_seen(driver, "#away"), "the dashboard goes on")
    assert "bad" in attribute(driver, "#said", "class")
    assert driver.execute_script("return sessionStorage.length") == 0


def test_a_server_without_tokens_has_no_login(driver: Chrome, server: FakeServer) -> None:
    server.may_administer = False
    open_dashboard(driver, server.url)
    assert text_of(driver, "#status") == "Status: Up"
    assert not is_seen(driver, "#login, #logout")
