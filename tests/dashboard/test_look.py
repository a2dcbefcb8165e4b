"""Dark and light colours, narrow windows, and the keyboard."""

import pytest
from selenium.webdriver.common.keys import Keys

from tests.dashboard.browser import UNKNOWN, Browser
from tests.dashboard.fake_server import FakeQueue, FakeServer, wave

pytestmark = pytest.mark.needs("chromium", "chromedriver")

PAIRS = [
    *((ink, paper) for ink in ("ink", "soft", "faint", "accent") for paper in ("page", "card", "raised", "hover")),
    *((tone, "card") for tone in ("good", "warn", "bad", "items", "puts", "gets")),
    *((tone, "page") for tone in ("warn", "bad")),
]
"""Texts, and their backgrounds."""

LUMINANCE = """
    const [name] = arguments;
    const probe = document.body.appendChild(document.createElement("i"));
    probe.style.color = `var(--${name})`;
    const [r, g, b] = getComputedStyle(probe).color.match(/[\\d.]+/g).map(Number).map((each) => each / 255)
        .map((each) => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
    probe.remove();
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
"""


def background(driver: Browser) -> str:
    return str(driver.execute_script("return getComputedStyle(document.body).backgroundColor"))


def contrast(driver: Browser, ink: str, paper: str) -> float:
    """Return the contrast as defined by the WCAG."""
    dark, light = sorted(float(driver.execute_script(LUMINANCE, name)) for name in (ink, paper))
    return (light + 0.05) / (dark + 0.05)


def test_colours_follow_the_system_unless_the_user_chose(driver: Browser, server: FakeServer) -> None:
    driver.open_dashboard(server.url)
    light = background(driver)
    driver.set_window(1280, 900, dark=True)
    dark = background(driver)
    assert dark != light
    driver.wait_until(lambda: driver.attribute("#look", "aria-pressed") == "true", "the button says so")
    driver.one("#look").click()
    assert background(driver) == light
    driver.refresh()
    assert background(driver) == light
    driver.wait_until(lambda: driver.attribute("#look", "aria-pressed") == "false", "the choice is kept")
    driver.one("#look").click()
    assert background(driver) == dark
    driver.set_window(1280, 900, dark=False)
    assert background(driver) == light


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_texts_have_enough_contrast(driver: Browser, server: FakeServer, dark: bool) -> None:
    driver.open_dashboard(server.url)
    driver.set_window(1280, 900, dark=dark)
    too_little = {pair: round(contrast(driver, *pair), 2) for pair in PAIRS if contrast(driver, *pair) < 4.5}
    assert too_little == {}
    assert contrast(driver, "edge", "card") >= 3


@pytest.mark.parametrize("fragment", ["#/", "#/queue/work", "#/connections", "#/server"])
def test_a_narrow_window_scrolls_only_vertically(driver: Browser, server: FakeServer, fragment: str) -> None:
    server.queues = [FakeQueue(b"work", items=3, history=wave(9, 4)), FakeQueue(b"x" * 200)]
    server.connections = [["10.0.0.1:50000", "memcache", "x" * 200, 1234, 2, "y" * 200, 2048, 4096, 0, 5]]
    driver.set_window(360, 700, dark=False)
    driver.open_dashboard(server.url, fragment)
    driver.wait_until(lambda: driver.is_seen("main canvas, #server-told, #connections td"), "the page")
    driver.settle()
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 360


def test_rates_are_visible_on_a_phone_without_scrolling(driver: Browser, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"a-queue-with-a-long-name", items=9_999_999, puts_a_look=246, gets_a_look=123)]
    driver.set_window(360, 700, dark=False)
    driver.open_dashboard(server.url)
    driver.look_again()
    driver.wait_until(lambda: driver.column("Puts/s") == ["123"], "the rates")
    rights = driver.execute_script("""
        const cells = document.querySelectorAll("tr[data-name] :is(.cell-name, .cell-items, .cell-puts, .cell-gets)");
        return [...cells].map((each) => [each.getBoundingClientRect().width, each.getBoundingClientRect().right]);
    """)
    assert len(rights) == 4
    assert all(width > 50 and right <= 360 for width, right in rights)


def test_the_time_range_of_the_charts_is_chosen(driver: Browser, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"work", items=641, history=[1000 - number for number in range(360)])]
    driver.open_dashboard(server.url, "#/queue/work")
    chart = "#queue-charts [role=img]"
    for label, words, most in (
        ("1 h", "hour", "1,000"),
        ("5 min", "5 minutes", "671"),
        ("15 min", "15 minutes", "731"),
    ):
        driver.wait_until(lambda label=label: driver.button_called(label), "the button").click()
        said = f"Items over the last {words}. Items: now 641, at most {most}."
        driver.wait_until(lambda said=said: driver.attribute(chart, "aria-label") == said, said)
        assert driver.texts_of("#queue .time-range [aria-pressed=true]") == [label]
    driver.one(".way a").click()
    driver.wait_until(lambda: driver.is_seen("#overview"), "the first page")
    assert driver.texts_of("#overview .time-range [aria-pressed=true]") == ["15 min"]
    assert driver.console_errors() == []


def test_the_first_tab_skips_to_the_content(driver: Browser, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"work", items=3)]
    driver.open_dashboard(server.url, "#/queue/work")
    driver.wait_until(lambda: driver.is_seen("#queue-there"), "the queue")
    driver.press(Keys.TAB)
    assert driver.focused_text() == "Skip to the content"
    driver.press(Keys.ENTER)
    assert driver.execute_script("return document.activeElement.id") == "queue-title"
    assert driver.current_url.endswith("#/queue/work")


def test_links_lead_to_the_pages_and_mark_the_current_one(driver: Browser, server: FakeServer) -> None:
    driver.open_dashboard(server.url)
    driver.one("nav a[data-page=server]").send_keys(Keys.ENTER)
    driver.wait_until(lambda: driver.is_seen("#server-told"), "the server's page")
    assert driver.text_of("nav a[aria-current=page]") == "Server"
    driver.one("nav a[data-page=overview]").send_keys(Keys.ENTER)
    driver.wait_until(lambda: driver.is_seen("#overview"), "the first page")
    assert driver.text_of("nav a[aria-current=page]") == "Queues"
    assert driver.console_errors() == []


def test_charts_have_a_description_in_words(driver: Browser, server: FakeServer) -> None:
    server.queues = [FakeQueue(b"work", items=3, history=wave(9, 4))]
    driver.open_dashboard(server.url)
    chart = "#overview-charts [role=img]"
    driver.wait_until(lambda: "now " in driver.attribute(chart, "aria-label"), "the history")
    assert "at most 6,498" in driver.attribute(chart, "aria-label")
    is_drawn = """
        const [canvas] = arguments;
        return canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean);
    """
    for canvas in (f"{chart} canvas", "tr[data-name=work] canvas"):
        driver.wait_until(lambda canvas=canvas: driver.execute_script(is_drawn, driver.one(canvas)), "it is drawn")


FIGURES = [
    ("count", 1234567, "1,234,567"),
    ("count", None, UNKNOWN),
    ("bytes", 0, "0 B"),
    ("bytes", 1023, "1,023 B"),
    ("bytes", 1536, "1.5 KiB"),
    ("bytes", 5 * 2**40, "5 TiB"),
    ("rate", 0.25, "0.3"),
    ("rate", 1234.5, "1,235"),
    ("compact", 1_250_000, "1.3M"),
    ("duration", 0, "0 ms"),
    ("duration", 0.34, "340 µs"),
    ("duration", 0.9996, "1 ms"),
    ("duration", 999.7, "1 s"),
    ("duration", 5_250, "5.3 s"),
    ("duration", 59_700, "1 min"),
    ("duration", 200_000, "3 min 20 s"),
    ("duration", 3_599_800, "1 h"),
    ("duration", 93_784_000, "1 d 2 h"),
    ("microseconds", 1900, "1.9 ms"),
]


def test_figures_are_formatted_for_readers(driver: Browser, server: FakeServer) -> None:
    driver.open_dashboard(server.url)
    asked = [(kind, value) for kind, value, _ in FIGURES]
    written = driver.evaluate("format.js", "args.map(([kind, value]) => it[kind](value))", *asked)
    assert written == [text for _, _, text in FIGURES]


def test_lines_of_a_chart_have_descriptions(driver: Browser, server: FakeServer) -> None:
    driver.open_dashboard(server.url)
    steps = driver.evaluate("charts.js", "it.STEPS_OF_TENTHS.slice(0, 8)")
    lines = [step * line for step in steps for line in range(1, 6)]
    told = driver.evaluate("format.js", "args.map(it.compact)", *lines)
    assert [float(text) for text in told] == pytest.approx(lines)


def rates(driver: Browser, *samples: tuple[int, int, dict[str, list[int]]]) -> list[float | None] | None:
    """Return the rates of the counters of work after samples of (uptime, clock, counters)."""
    script = """(() => {
        const rates = new it.Rates();
        for (const [uptime, time, counters] of args) rates.add(uptime, time, new Map(Object.entries(counters)));
        return rates.of("work");
    })()"""
    found: list[float | None] | None = driver.evaluate("rates.js", script, *samples)
    return found


def test_rates_use_the_time_between_samples_and_notice_restarts(driver: Browser, server: FakeServer) -> None:
    driver.open_dashboard(server.url)
    assert rates(driver, (1000, 50, {"work": [5]})) == [None]
    assert rates(driver, (1000, 50, {"work": [5]}), (3000, 2050, {"work": [15]})) == [5.0]
    # A queue that was created again, and a new one.
    assert rates(driver, (1000, 50, {"work": [50]}), (3000, 2050, {"work": [4]})) == [2.0]
    assert rates(driver, (1000, 50, {}), (3000, 2050, {"work": [4]})) == [2.0]
    # A restarted server, noticed by its uptime or its clock; and a pause of a minute.
    assert rates(driver, (9000, 50, {"work": [5]}), (3000, 2050, {"work": [15]})) == [None]
    assert rates(driver, (1000, 0, {"work": [5]}), (3000, 60_000, {"work": [15]})) == [None]
    assert rates(driver, (1000, 0, {"work": [5]}), (61_000, 60_000, {"work": [15]})) == [None]
    # The last ten seconds count.
    tens = [(2000 * at, 2000 * at, {"work": [at * at]}) for at in range(10)]
    assert rates(driver, *tens) == [(81 - 16) / 10]
