"""The page of a queue: its figures and actions."""

from urllib.parse import quote, unquote_to_bytes

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from kestrel.escaping import show_name, unescape_name
from tests.dashboard.browser import UNKNOWN, Browser
from tests.dashboard.fake_server import FakeQueue, FakeServer, wave

pytestmark = pytest.mark.needs("chromium", "chromedriver")


def open_queue(driver: Browser, server: FakeServer, fragment: str) -> None:
    driver.open_dashboard(server.url, f"#/queue/{fragment}")
    driver.wait_until(lambda: driver.is_seen("#queue-there"), "the queue is shown")


def test_page_shows_figures_settings_latencies_and_children(driver: Browser, server: FakeServer) -> None:
    children = (b"news+mail",)
    server.queues = [
        FakeQueue(
            b"news",
            items=1234,
            bytes=3 * 2**20,
            age_msec=200_000,
            oldest_age_msec=61_000,
            children=children,
            history=wave(1200, 400),
        ),
        FakeQueue(b"news+mail", items=7),
    ]
    open_queue(driver, server, "news")
    assert driver.text_of("#queue-title") == "news"
    assert driver.text_of("#queue-items") == "1,234"
    assert driver.text_of("#queue-age_msec") == "3 min 20 s"
    assert driver.text_of("#queue-oldest_age_msec") == "1 min 1 s"
    assert driver.text_of("#queue-figures [data-key=bytes] dd") == "3 MiB"
    assert driver.text_of("#queue-settings [data-key=maxMemorySize] dd") == "128 MiB"
    assert len(driver.find_elements(By.CSS_SELECTOR, "#queue-latencies tbody tr")) == 10
    put = driver.texts_of("#queue-latencies tbody tr:first-child > *")
    assert put == ["Put", "1,000", "120 µs", "95 µs", "240 µs", "1.9 ms", "12 ms", "64 ms"]
    sync = driver.texts_of("#queue-latencies tbody tr:last-child > *")
    assert sync == ["Fsync delay", "0", *[UNKNOWN] * 6]
    driver.wait_until(lambda: len(driver.find_elements(By.CSS_SELECTOR, "#queue canvas")) == 3, "three charts")
    chart = "#queue-charts [role=img]"
    driver.wait_until(lambda: "at most 1,600" in driver.attribute(chart, "aria-label"), "the chart in words")
    driver.one("#queue-children a").click()
    driver.wait_for_text("#queue-title", "news+mail")
    driver.wait_until(lambda: driver.text_of("#queue-items") == "7", "the child's figures")
    assert not driver.is_seen("#queue-children-part")
    assert driver.console_errors() == []


def test_flush_shows_its_effect_before_and_posts_once(driver: Browser, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"work", items=30, bytes=150)]
    open_queue(driver, server, "work")
    driver.button_called("Flush…").click()
    driver.wait_until(lambda: driver.is_seen("dialog[open]"), "the question is asked")
    assert "All 30 items of work will be deleted." in driver.text_of("dialog")
    assert driver.focused_text() == "Cancel"
    driver.press(Keys.ENTER)
    driver.wait_until(lambda: not driver.is_seen("dialog"), "it is cancelled")
    driver.button_called("Flush…").click()
    driver.wait_until(lambda: driver.is_seen("dialog[open]"), "the question is asked")
    driver.press(Keys.ESCAPE)
    driver.wait_until(lambda: not driver.is_seen("dialog"), "it is cancelled")
    assert server.posts == []
    driver.button_called("Flush…").click()
    assert "Delete all 30 items" in driver.confirm()
    driver.wait_for_text("[role=status]", "Done to work: flush.")
    driver.wait_until(lambda: driver.text_of("#queue-items") == "0", "the queue is empty")
    assert server.posts == ["/api/queue/work/flush"]


def test_double_click_on_confirm_posts_once(driver: Browser, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"work", items=30)]
    open_queue(driver, server, "work")
    with server.lock:  # the response takes until this block ends
        driver.button_called("Flush…").click()
        driver.wait_until(lambda: driver.is_seen("dialog[open]"), "the question is asked")
        driver.execute_script("for (const _ of [1, 2]) document.querySelector('#ask-do').click()")
        driver.button_called("Flush…").click()
        assert not driver.is_seen("dialog[open]")
    driver.wait_for_text("[role=status]", "Done to work: flush.")
    assert server.posts == ["/api/queue/work/flush"]


def test_expired_items_are_flushed(driver: Browser, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"work", items=30)]
    open_queue(driver, server, "work")
    driver.button_called("Flush expired…").click()
    assert "All other items stay in the queue." in driver.confirm()
    driver.wait_for_text("[role=status]", "Done to work: flush_expired.")
    assert server.posts == ["/api/queue/work/flush_expired"]


def test_deleted_queue_leads_back_to_the_list(driver: Browser, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"other"), FakeQueue(b"work", items=1)]
    open_queue(driver, server, "work")
    driver.button_called("Delete…").click()
    assert "The queue work and the only item in it will be deleted." in driver.confirm()
    driver.wait_until(lambda: driver.is_seen("tr[data-name=other]"), "the table")
    assert server.posts == ["/api/queue/work/delete"]
    driver.wait_until(lambda: not driver.is_seen("tr[data-name=work]"), "the queue is gone")


def test_error_of_the_server_is_shown_and_stays(driver: Browser, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"work", items=30)]
    server.refusals["/api/queue/work/flush"] = (409, "The server is ReadOnly: <b>nothing</b> is flushed.")
    open_queue(driver, server, "work")
    driver.button_called("Flush…").click()
    driver.confirm()
    driver.wait_for_text("[role=status]", "The server is ReadOnly: <b>nothing</b> is flushed.")
    assert "bad" in driver.attribute("#said", "class")
    assert driver.text_of("#queue-items") == "30"
    driver.one("#said-close").click()
    driver.wait_until(lambda: driver.text_of("[role=status]") == "", "it is put away")


def test_buttons_of_other_users_explain_why_they_are_disabled(driver: Browser, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"work", items=30)]
    server.may_administer = False
    server.peek = True
    open_queue(driver, server, "work")
    driver.wait_until(lambda: driver.is_seen("#queue-reason"), "the reason")
    assert "you are not an administrator" in driver.text_of("#queue-reason")
    for name in ("Flush expired…", "Flush…", "Delete…", "Show the items", "Put", "Move…"):
        assert not driver.button_called(name).is_enabled()
        assert driver.button_called(name).get_dom_attribute("aria-describedby") == "queue-reason"


@pytest.mark.parametrize(
    ("item", "shown", "said"),
    [
        (b"hello <i>world</i>\n", "hello <i>world</i>\n", "19 B, put 5 ms ago, shown as text"),
        ("Grüße".encode() * 1000, "GrüßeGrüße", "shown as text; first 4 KiB"),
        (b"\x00\x01PNG", "000000  00 01 50 4e 47", "shown as bytes"),
    ],
    ids=["text", "cut", "bytes"],
)
def test_an_item_is_shown_as_text_or_bytes(
    driver: Browser, server: FakeServer, item: bytes, shown: str, said: str
) -> None:
    server.peek = True
    server.queues = [FakeQueue(b"work", items=1, contents=(item,))]
    open_queue(driver, server, "work")
    driver.wait_until(lambda: driver.button_called("Show the items"), "the button").click()
    driver.wait_for_text("#items-list", said)
    assert driver.text_of("#items-list pre").startswith(shown)
    assert driver.text_of("#items-range") == "Items 1 to 1 of 1."
    assert not driver.is_seen("#items-next")


def test_items_are_browsed_page_by_page(driver: Browser, server: FakeServer) -> None:
    server.peek = True
    contents = tuple(b"item %d" % number for number in range(45))
    server.queues = [FakeQueue(b"work", items=1045, contents=contents), FakeQueue(b"empty")]
    open_queue(driver, server, "work")
    driver.button_called("Show the items").click()
    shown = "Items 1 to 20 of 1,045. The last 1,000 are only on disk and cannot be shown."
    driver.wait_for_text("#items-range", shown)
    driver.button_called("Next").click()
    driver.wait_for_text("#items-range", "Items 21 to 40")
    assert driver.texts_of("#items-list pre") == [f"item {number}" for number in range(20, 40)]
    driver.button_called("Next").click()
    driver.wait_for_text("#items-range", "Items 41 to 45")
    assert not driver.is_seen("#items-next")
    driver.button_called("← Previous").click()
    driver.wait_for_text("#items-range", "Items 21 to 40")
    open_queue(driver, server, "empty")
    driver.button_called("Show the items").click()
    driver.wait_for_text("#items-range", "The queue is empty.")
    assert driver.texts_of("#items-list pre") == []
    assert driver.console_errors() == []


def test_items_that_may_not_be_shown_have_no_button(driver: Browser, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"work", contents=(b"secret",))]
    open_queue(driver, server, "work")
    assert not driver.is_seen("#queue-look")


@pytest.mark.parametrize(
    ("kind", "text", "item"),
    [
        ("text", "größe\n", "größe\n".encode()),
        ("hex", "00 ff\n0A", b"\x00\xff\x0a"),
        ("base64", "AP8K", b"\x00\xff\x0a"),
        ("text", "", b""),
    ],
)
def test_an_item_is_put(driver: Browser, server: FakeServer, kind: str, text: str, item: bytes) -> None:
    server.queues = [FakeQueue(b"work")]
    open_queue(driver, server, "work")
    driver.execute_script("document.querySelector('#put-data').value = arguments[0]", text)
    driver.one(f"#put-format option[value={kind}]").click()
    driver.one("#put-expiry").send_keys("1.5")
    driver.one("#put-do").click()
    driver.wait_for_text("[role=status]", "Done to work: put")
    assert (server.posts, server.bodies) == (["/api/queue/work/put?expiry_ms=1500"], [item])
    assert driver.execute_script("return document.querySelector('#put-data').value") == ""
    assert driver.console_errors() == []


@pytest.mark.parametrize(
    ("kind", "said"), [("hex", "The item is not hexadecimal"), ("base64", "The item is not base64")]
)
def test_an_item_in_a_wrong_format_is_not_put(driver: Browser, server: FakeServer, kind: str, said: str) -> None:
    server.queues = [FakeQueue(b"work")]
    open_queue(driver, server, "work")
    driver.one("#put-data").send_keys("0 f!")
    driver.one(f"#put-format option[value={kind}]").click()
    driver.one("#put-do").click()
    driver.wait_for_text("[role=status]", said)
    assert server.posts == []
    assert driver.execute_script("return document.querySelector('#put-data').value") == "0 f!"


def test_items_are_moved_with_progress_until_they_are_stopped(driver: Browser, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"errors", items=30), FakeQueue(b"work")]
    open_queue(driver, server, "errors")
    assert driver.attribute("#move-choices option", "value") == "work"
    assert not driver.is_seen("#move-state")
    driver.one("#move-to").send_keys("work")
    driver.button_called("Move…").click()
    assert "They will be taken from the head of errors and put to work" in driver.confirm()
    driver.wait_for_text("#move-text", "0 of 30 items moved to work so far")
    assert server.posts == ["/api/queue/errors/move?to=work"]
    with server.lock:
        move = server.queues[0].move
        assert move is not None
        move["moved"] = 15
    driver.wait_for_text("#move-text", "15 of 30 items moved to work so far")
    assert driver.execute_script("return document.querySelector('#move-progress').position") == 0.5
    driver.button_called("Stop").click()
    driver.wait_for_text("#move-text", "15 of 30 items moved to work; ended: it was stopped")
    assert not driver.is_seen("#move-stop")
    assert server.posts[1:] == ["/api/queue/errors/stop_move"]
    assert driver.console_errors() == []


def test_items_move_and_waiting_move_shows_reason(driver: Browser, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"errors", items=30), FakeQueue(b"\xff+")]
    open_queue(driver, server, "errors")
    driver.one("#move-to").send_keys(r"\xff+")
    driver.one("#move-items").send_keys("7")
    driver.button_called("Move…").click()
    assert r"Move 7 items to \xff+?" in driver.confirm()
    driver.wait_until(lambda: server.posts == ["/api/queue/errors/move?to=%ff%2B&items=7"], "it is posted")
    with server.lock:
        move = server.queues[0].move
        assert move is not None
        move["delay"] = "disk full"
    driver.wait_for_text("#move-text", "waiting: disk full")


NAMES = [
    (b"<b>&\"'#?%", "<b>&\"'#?%"),
    ("größe".encode(), "größe"),
    (b"\xff\xfe+a", r"\xff\xfe+a"),
    (b"a\\xff", r"a\\xff"),
    ("a\u202eb".encode(), r"a\xe2\x80\xaeb"),
]


@pytest.mark.parametrize(("name", "shown"), NAMES, ids=["markup", "utf-8", "bytes", "backslash", "unseen"])
def test_strange_name_is_shown_unchanged_and_its_bytes_are_encoded(
    driver: Browser, server: FakeServer, name: bytes, shown: str
) -> None:
    def has_asked(target: bytes) -> bool:
        return target in [unquote_to_bytes(each) for each in server.requests]

    server.queues = [FakeQueue(name, items=4, history=wave(4, 2))]
    driver.open_dashboard(server.url)
    link = driver.wait_until(lambda: driver.one("tr[data-name] a"), "the row")
    assert driver.text_of("tr[data-name] a") == shown
    assert driver.attribute("tr[data-name] a", "href") == "#/queue/" + quote(shown, safe="!'()*~")
    driver.wait_until(lambda: has_asked(b"/api/history?queue=" + name), "its history is asked for")
    link.click()
    driver.wait_until(lambda: driver.text_of("#queue-items") == "4", "the queue's page")
    assert driver.text_of("#queue-title") == shown
    assert has_asked(b"/api/overview?queue=" + name)
    driver.button_called("Flush…").click()
    assert f"All 4 items of {shown} will be deleted." in driver.confirm()
    driver.wait_until(lambda: server.posts, "it is flushed")
    assert [unquote_to_bytes(each) for each in server.posts] == [b"/api/queue/%b/flush" % name]
    assert driver.console_errors() == []


OTHER_BACKSLASHES = [r"a\b\x\xG0", "a\\", r"a\\\xff", r"a\\xff"]


def test_path_of_shown_name_has_original_bytes(driver: Browser, server: FakeServer) -> None:
    driver.open_dashboard(server.url)
    shown = [*(show_name(bytes([byte])) for byte in range(256)), show_name("列\U0001f426".encode()), *OTHER_BACKSLASHES]
    encoded = driver.evaluate("queue_names.js", "args.map(it.encodeName)", *shown)
    assert [unquote_to_bytes(each) for each in encoded] == [unescape_name(each.encode()) for each in shown]
    assert not [each for each in encoded if "\\" in each or "/" in each]


@pytest.mark.parametrize("fragment", ["%ff%fe+a", r"\xff\xfe+a", "%5cxff%5cxfe%2ba"])
def test_address_with_the_bytes_of_a_name_finds_the_queue(driver: Browser, server: FakeServer, fragment: str) -> None:
    server.queues = [FakeQueue(b"\xff\xfe+a", items=4)]
    open_queue(driver, server, fragment)
    assert driver.text_of("#queue-title") == r"\xff\xfe+a"
    assert driver.text_of("#queue-items") == "4"
    assert driver.console_errors() == []


def test_missing_queue_is_reported(driver: Browser, server: FakeServer) -> None:
    driver.open_dashboard(server.url, "#/queue/nothing")
    driver.wait_for_text("#queue-gone", "There is no queue nothing.")
    assert driver.is_seen("#queue-gone")
    assert not driver.is_seen("#away")
    with server.lock:
        server.queues = [FakeQueue(b"nothing", items=2)]
    driver.look_again()
    driver.wait_until(lambda: driver.is_seen("#queue-there"), "it is there now")
    assert not driver.is_seen("#queue-gone")


def test_failure_of_a_queue_is_shown(driver: Browser, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"work", failure="Its journal could not be written: no space left.")]
    open_queue(driver, server, "work")
    assert driver.is_seen("#queue-failure")
    assert driver.text_of("#queue-failure") == "Its journal could not be written: no space left."
