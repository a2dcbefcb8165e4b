"""One queue's page: what it tells, and what can be done to the queue."""

from urllib.parse import quote, unquote_to_bytes

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from kestrel.escaping import show_name, unescape_name
from tests.dashboard.browser import (
    UNKNOWN,
    attribute,
    button_called,
    confirm,
    console_errors,
    evaluate,
    focused_text,
    is_seen,
    look_again,
    one,
    open_dashboard,
    press,
    text_of,
    texts_of,
    wait_for_text,
    wait_until,
)
from tests.dashboard.fake_server import FakeQueue, FakeServer, wave

pytestmark = pytest.mark.needs("chromium", "chromedriver")


def open_queue(driver: Chrome, server: FakeServer, fragment: str) -> None:
    open_dashboard(driver, server.url, f"#/queue/{fragment}")
    wait_until(driver, lambda: is_seen(driver, "#queue-there"), "the queue is shown")


def test_it_tells_figures_settings_latencies_and_children(driver: Chrome, server: FakeServer) -> None:
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
    assert text_of(driver, "#queue-title") == "news"
    assert text_of(driver, "#queue-items") == "1,234"
    assert text_of(driver, "#queue-age_msec") == "3 min 20 s"
    assert text_of(driver, "#queue-oldest_age_msec") == "1 min 1 s"
    assert text_of(driver, "#queue-figures [data-key=bytes] dd") == "3 MiB"
    assert text_of(driver, "#queue-settings [data-key=maxMemorySize] dd") == "128 MiB"
    assert len(driver.find_elements(By.CSS_SELECTOR, "#queue-latencies tbody tr")) == 10
    put = texts_of(driver, "#queue-latencies tbody tr:first-child > *")
    assert put == ["Put", "1,000", "120 µs", "95 µs", "240 µs", "1.9 ms", "12 ms", "64 ms"]
    sync = texts_of(driver, "#queue-latencies tbody tr:last-child > *")
    assert sync == ["Fsync delay", "0", *[UNKNOWN] * 6]
    wait_until(driver, lambda: len(driver.find_elements(By.CSS_SELECTOR, "#queue canvas")) == 3, "three charts")
    chart = "#queue-charts [role=img]"
    wait_until(driver, lambda: "at most 1,600" in attribute(driver, chart, "aria-label"), "the chart in words")
    one(driver, "#queue-children a").click()
    wait_for_text(driver, "#queue-title", "news+mail")
    wait_until(driver, lambda: text_of(driver, "#queue-items") == "7", "the child's figures")
    assert not is_seen(driver, "#queue-children-part")
    assert console_errors(driver) == []


def test_flush_asks_first_with_what_will_be_dropped_and_posts_once(driver: Chrome, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"work", items=30, bytes=150)]
    open_queue(driver, server, "work")
    button_called(driver, "Flush…").click()
    wait_until(driver, lambda: is_seen(driver, "dialog[open]"), "the question is asked")
    assert "All 30 items of work will be deleted." in text_of(driver, "dialog")
    assert focused_text(driver) == "Cancel"
    press(driver, Keys.ENTER)
    wait_until(driver, lambda: not is_seen(driver, "dialog"), "it is cancelled")
    button_called(driver, "Flush…").click()
    wait_until(driver, lambda: is_seen(driver, "dialog[open]"), "the question is asked")
    press(driver, Keys.ESCAPE)
    wait_until(driver, lambda: not is_seen(driver, "dialog"), "it is cancelled")
    assert server.posts == []
    button_called(driver, "Flush…").click()
    assert "Delete all 30 items" in confirm(driver)
    wait_for_text(driver, "[role=status]", "Done to work: flush.")
    wait_until(driver, lambda: text_of(driver, "#queue-items") == "0", "the queue is empty")
    assert server.posts == ["/api/queue/work/flush"]


def test_two_clicks_that_confirm_post_once(driver: Chrome, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"work", items=30)]
    open_queue(driver, server, "work")
    with server.lock:  # the answer takes until here is done
        button_called(driver, "Flush…").click()
        wait_until(driver, lambda: is_seen(driver, "dialog[open]"), "the question is asked")
        driver.execute_script("for (const _ of [1, 2]) document.querySelector('#ask-do').click()")
        button_called(driver, "Flush…").click()
        assert not is_seen(driver, "dialog[open]")
    wait_for_text(driver, "[role=status]", "Done to work: flush.")
    assert server.posts == ["/api/queue/work/flush"]


def test_expired_items_are_flushed(driver: Chrome, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"work", items=30)]
    open_queue(driver, server, "work")
    button_called(driver, "Flush expired…").click()
    assert "All other items stay in the queue." in confirm(driver)
    wait_for_text(driver, "[role=status]", "Done to work: flush_expired.")
    assert server.posts == ["/api/queue/work/flush_expired"]


def test_a_queue_that_was_deleted_leads_back_to_the_others(driver: Chrome, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"other"), FakeQueue(b"work", items=1)]
    open_queue(driver, server, "work")
    button_called(driver, "Delete…").click()
    assert "The queue work and the only item in it will be deleted." in confirm(driver)
    wait_until(driver, lambda: is_seen(driver, "tr[data-name=other]"), "the table")
    assert server.posts == ["/api/queue/work/delete"]
    wait_until(driver, lambda: not is_seen(driver, "tr[data-name=work]"), "the queue is gone")


def test_an_error_of_the_server_is_shown_in_its_words_and_stays(driver: Chrome, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"work", items=30)]
    server.refusals["/api/queue/work/flush"] = (409, "The server is ReadOnly: <b>nothing</b> is flushed.")
    open_queue(driver, server, "work")
    button_called(driver, "Flush…").click()
    confirm(driver)
    wait_for_text(driver, "[role=status]", "The server is ReadOnly: <b>nothing</b> is flushed.")
    assert "bad" in attribute(driver, "#said", "class")
    assert text_of(driver, "#queue-items") == "30"
    one(driver, "#said-close").click()
    wait_until(driver, lambda: text_of(driver, "[role=status]") == "", "it is put away")


def test_who_may_not_administer_sees_buttons_that_say_why_not(driver: Chrome, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"work", items=30)]
    server.may_administer = False
    server.peek = True
    open_queue(driver, server, "work")
    wait_until(driver, lambda: is_seen(driver, "#queue-reason"), "the reason")
    assert "you are not an administrator" in text_of(driver, "#queue-reason")
    for name in ("Flush expired…", "Flush…", "Delete…", "Show the items", "Put", "Move…"):
        assert not button_called(driver, name).is_enabled()
        assert button_called(driver, name).get_dom_attribute("aria-describedby") == "queue-reason"


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
    driver: Chrome, server: FakeServer, item: bytes, shown: str, said: str
) -> None:
    server.peek = True
    server.queues = [FakeQueue(b"work", items=1, contents=(item,))]
    open_queue(driver, server, "work")
    wait_until(driver, lambda: button_called(driver, "Show the items"), "the button").click()
    wait_for_text(driver, "#items-list", said)
    assert text_of(driver, "#items-list pre").startswith(shown)
    assert text_of(driver, "#items-range") == "Items 1 to 1 of 1."
    assert not is_seen(driver, "#items-next")


def test_items_are_browsed_page_by_page(driver: Chrome, server: FakeServer) -> None:
    server.peek = True
    contents = tuple(b"item %d" % number for number in range(45))
    server.queues = [FakeQueue(b"work", items=1045, contents=contents), FakeQueue(b"empty")]
    open_queue(driver, server, "work")
    button_called(driver, "Show the items").click()
    wait_for_text(
        driver, "#items-range", "Items 1 to 20 of 1,045. The last 1,000 are only on disk and cannot be shown."
    )
    button_called(driver, "Next").click()
    wait_for_text(driver, "#items-range", "Items 21 to 40")
    assert texts_of(driver, "#items-list pre") == [f"item {number}" for number in range(20, 40)]
    button_called(driver, "Next").click()
    wait_for_text(driver, "#items-range", "Items 41 to 45")
    assert not is_seen(driver, "#items-next")
    button_called(driver, "← Previous").click()
    wait_for_text(driver, "#items-range", "Items 21 to 40")
    open_queue(driver, server, "empty")
    button_called(driver, "Show the items").click()
    wait_for_text(driver, "#items-range", "The queue is empty.")
    assert texts_of(driver, "#items-list pre") == []
    assert console_errors(driver) == []


def test_items_that_may_not_be_looked_at_have_no_button(driver: Chrome, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"work", contents=(b"secret",))]
    open_queue(driver, server, "work")
    assert not is_seen(driver, "#queue-look")


@pytest.mark.parametrize(
    ("kind", "text", "item"),
    [
        ("text", "größe\n", "größe\n".encode()),
        ("hex", "00 ff\n0A", b"\x00\xff\x0a"),
        ("base64", "AP8K", b"\x00\xff\x0a"),
        ("text", "", b""),
    ],
)
def test_an_item_is_put(driver: Chrome, server: FakeServer, kind: str, text: str, item: bytes) -> None:
    server.queues = [FakeQueue(b"work")]
    open_queue(driver, server, "work")
    driver.execute_script("document.querySelector('#put-data').value = arguments[0]", text)
    one(driver, f"#put-format option[value={kind}]").click()
    one(driver, "#put-expiry").send_keys("1.5")
    one(driver, "#put-do").click()
    wait_for_text(driver, "[role=status]", "Done to work: put")
    assert (server.posts, server.bodies) == (["/api/queue/work/put?expiry_ms=1500"], [item])
    assert driver.execute_script("return document.querySelector('#put-data').value") == ""
    assert console_errors(driver) == []


@pytest.mark.parametrize(
    ("kind", "said"), [("hex", "The item is not hexadecimal"), ("base64", "The item is not base64")]
)
def test_an_item_in_a_wrong_format_is_not_put(driver: Chrome, server: FakeServer, kind: str, said: str) -> None:
    server.queues = [FakeQueue(b"work")]
    open_queue(driver, server, "work")
    one(driver, "#put-data").send_keys("0 f!")
    one(driver, f"#put-format option[value={kind}]").click()
    one(driver, "#put-do").click()
    wait_for_text(driver, "[role=status]", said)
    assert server.posts == []
    assert driver.execute_script("return document.querySelector('#put-data').value") == "0 f!"


def test_items_are_moved_with_progress_until_they_are_stopped(driver: Chrome, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"errors", items=30), FakeQueue(b"work")]
    open_queue(driver, server, "errors")
    assert attribute(driver, "#move-choices option", "value") == "work"
    assert not is_seen(driver, "#move-state")
    one(driver, "#move-to").send_keys("work")
    button_called(driver, "Move…").click()
    assert "They will be taken from the head of errors and put to work" in confirm(driver)
    wait_for_text(driver, "#move-text", "0 of 30 items moved to work so far")
    assert server.posts == ["/api/queue/errors/move?to=work"]
    with server.lock:
        move = server.queues[0].move
        assert move is not None
        move["moved"] = 15
    wait_for_text(driver, "#move-text", "15 of 30 items moved to work so far")
    assert driver.execute_script("return document.querySelector('#move-progress').position") == 0.5
    button_called(driver, "Stop").click()
    wait_for_text(driver, "#move-text", "15 of 30 items moved to work; ended: it was stopped")
    assert not is_seen(driver, "#move-stop")
    assert server.posts[1:] == ["/api/queue/errors/stop_move"]
    assert console_errors(driver) == []


def test_a_number_of_items_is_moved_and_a_waiting_move_has_its_reason(driver: Chrome, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"errors", items=30), FakeQueue(b"\xff+")]
    open_queue(driver, server, "errors")
    one(driver, "#move-to").send_keys(r"\xff+")
    one(driver, "#move-items").send_keys("7")
    button_called(driver, "Move…").click()
    assert r"Move 7 items to \xff+?" in confirm(driver)
    wait_until(driver, lambda: server.posts == ["/api/queue/errors/move?to=%ff%2B&items=7"], "it is posted")
    with server.lock:
        move = server.queues[0].move
        assert move is not None
        move["delay"] = "disk full"
    wait_for_text(driver, "#move-text", "waiting: disk full")


NAMES = [
    (b"<b>&\"'#?%", "<b>&\"'#?%"),
    ("größe".encode(), "größe"),
    (b"\xff\xfe+a", r"\xff\xfe+a"),
    (b"a\\xff", r"a\\xff"),
    ("a\u202eb".encode(), r"a\xe2\x80\xaeb"),
]


@pytest.mark.parametrize(("name", "shown"), NAMES, ids=["markup", "utf-8", "bytes", "backslash", "unseen"])
def test_a_strange_name_is_shown_as_it_is_and_its_bytes_are_encoded(
    driver: Chrome, server: FakeServer, name: bytes, shown: str
) -> None:
    def has_asked(target: bytes) -> bool:
        return target in [unquote_to_bytes(each) for each in server.requests]

    server.queues = [FakeQueue(name, items=4, history=wave(4, 2))]
    open_dashboard(driver, server.url)
    link = wait_until(driver, lambda: one(driver, "tr[data-name] a"), "the row")
    assert text_of(driver, "tr[data-name] a") == shown
    assert attribute(driver, "tr[data-name] a", "href") == "#/queue/" + quote(shown, safe="!'()*~")
    wait_until(driver, lambda: has_asked(b"/api/history?queue=" + name), "its history is asked for")
    link.click()
    wait_until(driver, lambda: text_of(driver, "#queue-items") == "4", "the queue's page")
    assert text_of(driver, "#queue-title") == shown
    assert has_asked(b"/api/overview?queue=" + name)
    button_called(driver, "Flush…").click()
    assert f"All 4 items of {shown} will be deleted." in confirm(driver)
    wait_until(driver, lambda: server.posts, "it is flushed")
    assert [unquote_to_bytes(each) for each in server.posts] == [b"/api/queue/%b/flush" % name]
    assert console_errors(driver) == []


OTHER_BACKSLASHES = [r"a\b\x\xG0", "a\\", r"a\\\xff", r"a\\xff"]


def test_path_of_a_shown_name_has_the_bytes_of_the_name(driver: Chrome, server: FakeServer) -> None:
    open_dashboard(driver, server.url)
    shown = [*(show_name(bytes([byte])) for byte in range(256)), show_name("列\U0001f426".encode()), *OTHER_BACKSLASHES]
    encoded = evaluate(driver, "queue_names.js", "args.map(it.encodeName)", *shown)
    assert [unquote_to_bytes(each) for each in encoded] == [unescape_name(each.encode()) for each in shown]
    assert not [each for each in encoded if "\\" in each or "/" in each]


@pytest.mark.parametrize("fragment", ["%ff%fe+a", r"\xff\xfe+a", "%5cxff%5cxfe%2ba"])
def test_address_with_the_bytes_of_a_name_finds_the_queue(driver: Chrome, server: FakeServer, fragment: str) -> None:
    server.queues = [FakeQueue(b"\xff\xfe+a", items=4)]
    open_queue(driver, server, fragment)
    assert text_of(driver, "#queue-title") == r"\xff\xfe+a"
    assert text_of(driver, "#queue-items") == "4"
    assert console_errors(driver) == []


def test_a_queue_that_is_not_there_is_said_in_words(driver: Chrome, server: FakeServer) -> None:
    open_dashboard(driver, server.url, "#/queue/nothing")
    wait_for_text(driver, "#queue-gone", "There is no queue nothing.")
    assert is_seen(driver, "#queue-gone")
    assert not is_seen(driver, "#away")
    with server.lock:
        server.queues = [FakeQueue(b"nothing", items=2)]
    look_again(driver)
    wait_until(driver, lambda: is_seen(driver, "#queue-there"), "it is there now")
    assert not is_seen(driver, "#queue-gone")


def test_what_went_wrong_with_a_queue_is_said(driver: Chrome, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"work", failure="Its journal could not be written: no space left.")]
    open_queue(driver, server, "work")
    assert is_seen(driver, "#queue-failure")
    assert text_of(driver, "#queue-failure") == "Its journal could not be written: no space left."
