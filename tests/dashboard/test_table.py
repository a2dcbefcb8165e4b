"""The table of queues: sorted, filtered, and used by keyboard. The document contains only the visible rows."""

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.dashboard.browser import Browser
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


def names_are(driver: Browser, names: list[str]) -> None:
    driver.wait_until(lambda: driver.column("Queue") == names, f"the queues are {names}")


def head_of(label: str) -> str:
    """Return the XPath of the column's button."""
    return f"//table[contains(@class, 'queues')]/thead//button[starts-with(., '{label}')]"


def test_click_sorts_by_a_column_largest_first_and_then_smallest(driver: Browser, server: FakeServer) -> None:
    server.queues = THREE
    driver.open_dashboard(server.url)
    driver.look_again()
    driver.wait_until(lambda: driver.column("Puts/s") == ["10", "30", "20"], "rates are known")
    assert driver.sorted_by() == {"Queue": "ascending"}
    for label, names in LARGEST_FIRST.items():
        driver.find_element(By.XPATH, head_of(label)).click()
        names_are(driver, names)
        assert driver.sorted_by() == {label: "descending"}
        driver.find_element(By.XPATH, head_of(label)).click()
        names_are(driver, names[::-1])
        assert driver.sorted_by() == {label: "ascending"}
    driver.find_element(By.XPATH, head_of("Queue")).click()
    names_are(driver, ["ants", "bees", "cats"])
    assert driver.console_errors() == []


def test_columns_are_sorted_by_keyboard_alone(driver: Browser, server: FakeServer) -> None:
    server.queues = THREE
    driver.open_dashboard(server.url)
    names_are(driver, ["ants", "bees", "cats"])
    driver.one("#filter").send_keys(Keys.TAB, Keys.NULL)
    driver.press(Keys.TAB, Keys.NULL)
    assert driver.focused_text().startswith("Queue")
    driver.press(Keys.TAB)
    driver.press(Keys.ENTER)
    names_are(driver, LARGEST_FIRST["Items"])
    driver.press(Keys.SPACE)
    names_are(driver, LARGEST_FIRST["Items"][::-1])
    assert driver.sorted_by() == {"Items": "ascending"}


def test_totals_are_those_of_the_shown_queues(driver: Browser, server: FakeServer) -> None:
    server.queues = THREE
    driver.open_dashboard(server.url)
    totals = "table.queues tfoot .cell-"
    driver.look_again()
    driver.wait_for_text(f"{totals}puts", "60")
    assert (driver.text_of(f"{totals}items"), driver.text_of(f"{totals}bytes")) == ("6", "6 MiB")
    assert driver.text_of("#queues-count") == "3 queues"
    driver.one("#filter").send_keys("ts")
    names_are(driver, ["ants", "cats"])
    assert (driver.text_of(f"{totals}items"), driver.text_of(f"{totals}bytes")) == ("5", "3 MiB")
    assert driver.text_of("#queues-count") == "2 of 3 queues"


def test_filter_finds_name_parts_or_reports_none(driver: Browser, server: FakeServer) -> None:
    server.queues = [FakeQueue(name) for name in (b"news", b"news+mail", b"work")]
    driver.open_dashboard(server.url)
    driver.press("/")  # the key that focuses the filter
    driver.press("NEWS")
    names_are(driver, ["news", "news+mail"])
    driver.press("<b>")
    driver.wait_until(lambda: driver.is_seen("#no-match"), "nothing is found")
    assert driver.text_of("#no-match") == "No queue name contains “NEWS<b>”."
    driver.press(Keys.ESCAPE)
    names_are(driver, ["news", "news+mail", "work"])
    assert not driver.is_seen("#no-match")


def test_only_visible_rows_of_2000_queues_are_in_the_document(
    driver: Browser, server: FakeServer
) -> None:
    server.queues = [FakeQueue(b"queue_%04d" % number, items=number, history=wave(9, 5)) for number in range(2000)]
    driver.open_dashboard(server.url)
    driver.wait_until(lambda: driver.column("Queue")[:2] == ["queue_0000", "queue_0001"], "the first rows")
    rows = len(driver.column("Queue"))
    assert 10 < rows < 60
    height = driver.execute_script("return document.querySelector('#queues-scroll').scrollHeight")
    assert height > 2000 * 30
    driver.execute_script("document.querySelector('#queues-scroll').scrollTop = 1e9")
    driver.wait_until(lambda: driver.column("Queue")[-1:] == ["queue_1999"], "the last row")
    assert len(driver.column("Queue")) < 60
    assert driver.is_seen("tr[data-name=queue_1999]")
    driver.wait_until(lambda: any("queue=queue_1999" in each for each in server.requests), "its history is asked for")
    asked = [each.count("queue=") for each in server.requests if "history?" in each]
    assert max(asked) < 60


def test_arrows_move_through_thousands_of_rows_and_enter_opens_one(driver: Browser, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"queue_%04d" % number) for number in range(2000)]
    driver.open_dashboard(server.url)
    driver.one("#filter").send_keys(Keys.ARROW_DOWN)
    assert driver.focused_text() == "queue_0000"
    driver.press(Keys.ARROW_DOWN)
    driver.press(Keys.ARROW_DOWN)
    driver.press(Keys.ARROW_UP)
    assert driver.focused_text() == "queue_0001"
    driver.press(Keys.END)
    assert driver.focused_text() == "queue_1999"
    driver.press(Keys.ARROW_UP)
    assert driver.focused_text() == "queue_1998"
    driver.press(Keys.ENTER)
    driver.wait_until(lambda: driver.text_of("#queue-title") == "queue_1998", "the queue's page")
    driver.back()
    driver.wait_until(lambda: driver.is_seen("table.queues"), "the table again")
    assert driver.focused_text() == "queue_1998"


def test_focus_stays_on_a_queue_when_the_order_changes(driver: Browser, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"ants", items=3), FakeQueue(b"bees", items=2), FakeQueue(b"cats", items=1)]
    driver.open_dashboard(server.url)
    names_are(driver, ["ants", "bees", "cats"])
    driver.find_element(By.XPATH, head_of("Items")).click()
    driver.one("#filter").send_keys(Keys.ARROW_DOWN)
    assert driver.focused_text() == "ants"
    with server.lock:
        server.queues[0].items = 0
    driver.look_again()
    names_are(driver, ["bees", "cats", "ants"])
    assert driver.focused_text() == "ants"


def test_a_click_anywhere_on_a_row_opens_its_queue(driver: Browser, server: FakeServer) -> None:
    server.queues = THREE
    driver.open_dashboard(server.url)
    driver.wait_until(lambda: driver.one("tr[data-name=bees] .cell-items"), "the row").click()
    driver.wait_until(lambda: driver.text_of("#queue-title") == "bees", "the queue's page")
    assert driver.current_url.endswith("/#/queue/bees")


def test_server_without_queues_suggests_a_command(driver: Browser, server: FakeServer) -> None:
    driver.open_dashboard(server.url)
    assert driver.is_seen("#no-queues")
    assert r"printf 'set work 0 0 5\r\nhello\r\n' | nc localhost 22133" in driver.text_of("#no-queues")
    with server.lock:
        server.queues = [FakeQueue(b"work", items=1)]
    driver.look_again()
    names_are(driver, ["work"])
    assert not driver.is_seen("#no-queues")
    assert driver.console_errors() == []
