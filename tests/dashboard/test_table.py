"""The table of queues: sorted, filtered, walked through, and only as large in the document as what can be seen."""

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.dashboard.browser import (
    column,
    console_errors,
    focused_text,
    is_seen,
    look_again,
    one,
    open_dashboard,
    press,
    sorted_by,
    text_of,
    wait_for_text,
    wait_until,
)
from tests.dashboard.fake_server import FakeQueue, FakeServer, wave

pytestmark = pytest.mark.needs("chromium", "chromedriver")

MIB = 2**20

FIELDS = (
    *("items", "bytes", "puts_a_look", "gets_a_look", "age_msec", "oldest_age_msec", "waiters"),
    *("open_transactions", "journal_bytes", "mem_bytes", "expired_items", "discarded"),
)
THREE = [
    FakeQueue(name, **dict(zip(FIELDS, values, strict=True)))
    for name, *values in (
        (b"ants", 3, 2 * MIB, 20, 6, 90, 50, 1, 5, 70, 8, 7, 12),
        (b"bees", 1, 3 * MIB, 60, 2, 70, 70, 3, 4, 90, 9, 8, 11),
        (b"cats", 2, 1 * MIB, 40, 4, 80, 60, 2, 6, 80, 7, 9, 13),
    )
]

LARGEST_FIRST = {
    "Items": ["ants", "cats", "bees"],
    "Bytes": ["bees", "ants", "cats"],
    "Puts/s": ["bees", "cats", "ants"],
    "Gets/s": ["ants", "cats", "bees"],
    "Oldest": ["bees", "cats", "ants"],
    "Last wait": ["ants", "cats", "bees"],
    "Waiters": ["bees", "cats", "ants"],
    "Open": ["cats", "ants", "bees"],
    "Journal": ["bees", "cats", "ants"],
    "Memory": ["bees", "ants", "cats"],
    "Expired": ["cats", "bees", "ants"],
    "Discarded": ["cats", "ants", "bees"],
}


def names_are(driver: Chrome, names: list[str]) -> None:
    wait_until(driver, lambda: column(driver, "Queue") == names, f"the queues are {names}")


def head_of(label: str) -> str:
    """The button of the column, as an XPath."""
    return f"//table[contains(@class, 'queues')]/thead//button[starts-with(., '{label}')]"


def test_each_column_sorts_by_click_the_largest_first_and_then_the_smallest(driver: Chrome, server: FakeServer) -> None:
    server.queues = THREE
    open_dashboard(driver, server.url)
    look_again(driver)
    wait_until(driver, lambda: column(driver, "Puts/s") == ["10", "30", "20"], "rates are known")
    assert sorted_by(driver) == {"Queue": "ascending"}
    for label, names in LARGEST_FIRST.items():
        driver.find_element(By.XPATH, head_of(label)).click()
        names_are(driver, names)
        assert sorted_by(driver) == {label: "descending"}
        driver.find_element(By.XPATH, head_of(label)).click()
        names_are(driver, names[::-1])
        assert sorted_by(driver) == {label: "ascending"}
    driver.find_element(By.XPATH, head_of("Queue")).click()
    names_are(driver, ["ants", "bees", "cats"])
    assert console_errors(driver) == []


def test_columns_are_sorted_by_keyboard_alone(driver: Chrome, server: FakeServer) -> None:
    server.queues = THREE
    open_dashboard(driver, server.url)
    names_are(driver, ["ants", "bees", "cats"])
    one(driver, "#filter").send_keys(Keys.TAB, Keys.NULL)
    press(driver, Keys.TAB, Keys.NULL)
    assert focused_text(driver).startswith("Queue")
    press(driver, Keys.TAB)
    press(driver, Keys.ENTER)
    names_are(driver, LARGEST_FIRST["Items"])
    press(driver, Keys.SPACE)
    names_are(driver, LARGEST_FIRST["Items"][::-1])
    assert sorted_by(driver) == {"Items": "ascending"}


def test_totals_are_of_the_queues_that_are_shown(driver: Chrome, server: FakeServer) -> None:
    server.queues = THREE
    open_dashboard(driver, server.url)
    totals = "table.queues tfoot .cell-"
    look_again(driver)
    wait_for_text(driver, f"{totals}puts", "60")
    assert (text_of(driver, f"{totals}items"), text_of(driver, f"{totals}bytes")) == ("6", "6 MiB")
    assert text_of(driver, "#queues-count") == "3 queues"
    one(driver, "#filter").send_keys("ts")
    names_are(driver, ["ants", "cats"])
    assert (text_of(driver, f"{totals}items"), text_of(driver, f"{totals}bytes")) == ("5", "3 MiB")
    assert text_of(driver, "#queues-count") == "2 of 3 queues"


def test_the_filter_finds_parts_of_names_and_says_when_there_are_none(driver: Chrome, server: FakeServer) -> None:
    server.queues = [FakeQueue(name) for name in (b"news", b"news+mail", b"work")]
    open_dashboard(driver, server.url)
    press(driver, "/")  # the key that goes to the filter
    press(driver, "NEWS")
    names_are(driver, ["news", "news+mail"])
    press(driver, "<b>")
    wait_until(driver, lambda: is_seen(driver, "#no-match"), "nothing is found")
    assert text_of(driver, "#no-match") == "No queue name contains “NEWS<b>”."
    press(driver, Keys.ESCAPE)
    names_are(driver, ["news", "news+mail", "work"])
    assert not is_seen(driver, "#no-match")


def test_of_2000_queues_only_rows_that_can_be_seen_are_there_and_scrolling_shows_the_last(
    driver: Chrome, server: FakeServer
) -> None:
    server.queues = [FakeQueue(b"queue_%04d" % number, items=number, history=wave(9, 5)) for number in range(2000)]
    open_dashboard(driver, server.url)
    wait_until(driver, lambda: column(driver, "Queue")[:2] == ["queue_0000", "queue_0001"], "the first rows")
    rows = len(column(driver, "Queue"))
    assert 10 < rows < 60
    height = driver.execute_script("return document.querySelector('#queues-scroll').scrollHeight")
    assert height > 2000 * 30
    driver.execute_script("document.querySelector('#queues-scroll').scrollTop = 1e9")
    wait_until(driver, lambda: column(driver, "Queue")[-1:] == ["queue_1999"], "the last row")
    assert len(column(driver, "Queue")) < 60
    assert is_seen(driver, "tr[data-name=queue_1999]")
    wait_until(driver, lambda: any("queue=queue_1999" in each for each in server.requests), "its history is asked for")
    asked = [each.count("queue=") for each in server.requests if "history?" in each]
    assert max(asked) < 60


def test_arrows_walk_through_thousands_of_rows_and_enter_opens_one(driver: Chrome, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"queue_%04d" % number) for number in range(2000)]
    open_dashboard(driver, server.url)
    one(driver, "#filter").send_keys(Keys.ARROW_DOWN)
    assert focused_text(driver) == "queue_0000"
    press(driver, Keys.ARROW_DOWN)
    press(driver, Keys.ARROW_DOWN)
    press(driver, Keys.ARROW_UP)
    assert focused_text(driver) == "queue_0001"
    press(driver, Keys.END)
    assert focused_text(driver) == "queue_1999"
    press(driver, Keys.ARROW_UP)
    assert focused_text(driver) == "queue_1998"
    press(driver, Keys.ENTER)
    wait_until(driver, lambda: text_of(driver, "#queue-title") == "queue_1998", "the queue's page")
    driver.back()
    wait_until(driver, lambda: is_seen(driver, "table.queues"), "the table again")
    assert focused_text(driver) == "queue_1998"


def test_the_focus_stays_at_a_queue_when_others_overtake_it(driver: Chrome, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"ants", items=3), FakeQueue(b"bees", items=2), FakeQueue(b"cats", items=1)]
    open_dashboard(driver, server.url)
    names_are(driver, ["ants", "bees", "cats"])
    driver.find_element(By.XPATH, head_of("Items")).click()
    one(driver, "#filter").send_keys(Keys.ARROW_DOWN)
    assert focused_text(driver) == "ants"
    with server.lock:
        server.queues[0].items = 0
    look_again(driver)
    names_are(driver, ["bees", "cats", "ants"])
    assert focused_text(driver) == "ants"


def test_a_click_anywhere_on_a_row_opens_its_queue(driver: Chrome, server: FakeServer) -> None:
    server.queues = THREE
    open_dashboard(driver, server.url)
    wait_until(driver, lambda: one(driver, "tr[data-name=bees] .cell-items"), "the row").click()
    wait_until(driver, lambda: text_of(driver, "#queue-title") == "bees", "the queue's page")
    assert driver.current_url.endswith("/#/queue/bees")


def test_a_server_without_queues_says_what_to_try(driver: Chrome, server: FakeServer) -> None:
    open_dashboard(driver, server.url)
    assert is_seen(driver, "#no-queues")
    assert r"printf 'set work 0 0 5\r\nhello\r\n' | nc localhost 22133" in text_of(driver, "#no-queues")
    with server.lock:
        server.queues = [FakeQueue(b"work", items=1)]
    look_again(driver)
    names_are(driver, ["work"])
    assert not is_seen(driver, "#no-queues")
    assert console_errors(driver) == []
