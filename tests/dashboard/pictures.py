"""Takes the pictures of docs/admin.md.

    python -m tests.dashboard.pictures --to docs/admin

needs chromium and chromedriver (Debian: chromium, chromium-driver).
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from tests.child import Child
from tests.dashboard.browser import Browser, started_browser

MANY: Final = 2000
WIDTH: Final = 1280
PHONE_WIDTH: Final = 390
PHONE_HEIGHT: Final = 844
LOOKS: Final = (("", False), ("-dark", True))


class Picture(NamedTuple):
    """A picture: the page, the number of queues, and the size in pixels."""

    name: str
    fragment: str
    queues: int
    height: int
    dark: bool = False
    width: int = WIDTH
    items: bool = False
    """Whether it shows the items of the queue and a move."""


PICTURES: Final = (
    Picture("few", "#/", 8, 920),
    Picture("queue", "#/queue/orders", 8, 1240),
    Picture("server", "#/server", 8, 1240),
    Picture("dark", "#/", 8, 920, dark=True),
    *(Picture(f"connections{name}", "#/connections", 8, 620, dark) for name, dark in LOOKS),
    *(Picture(f"items{name}", "#/queue/retries", 8, 920, dark, items=True) for name, dark in LOOKS),
    *(Picture(f"phone{name}", "#/", 8, PHONE_HEIGHT, dark, PHONE_WIDTH) for name, dark in LOOKS),
    *(Picture(f"phone-connections{name}", "#/connections", 8, PHONE_HEIGHT, dark, PHONE_WIDTH) for name, dark in LOOKS),
    *(
        Picture(f"phone-items{name}", "#/queue/retries", 8, PHONE_HEIGHT, dark, PHONE_WIDTH, True)
        for name, dark in LOOKS
    ),
    Picture("many", "#/", MANY, 920),
)


@contextmanager
def busy_server(queues: int, *options: str) -> Iterator[str]:
    """Yield the URL of the admin port of a server with that many queues."""
    command = [sys.executable, "-m", "tests.dashboard.busy_server", "--queues", str(queues), *options]
    with Child[str](command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.read_line().strip()
        finally:
            process.kill()


def take(driver: Browser, url: str, picture: Picture, folder: Path) -> None:
    """Take one picture."""
    driver.set_window(picture.width, picture.height, dark=picture.dark)
    driver.open_dashboard(url, picture.fragment)
    driver.wait_until(lambda: "away" not in driver.body_classes(), "the server is there")
    if picture.fragment == "#/connections":
        driver.wait_until(lambda: "reports" in driver.text_of("#connections-list"), "the clients")
    elif picture.fragment != "#/server":
        driver.wait_until(lambda: _has_rates(driver), "rates are known")
    if picture.items:
        _show_items(driver)
    driver.save_page(folder / f"{picture.name}.png", picture.width, picture.height, picture.dark)


def _show_items(driver: Browser) -> None:
    driver.button_called("Show the items").click()
    driver.wait_until(lambda: driver.texts_of("#items-list li"), "the items")
    if not driver.is_seen("#move-state"):
        driver.one("#move-to").send_keys("orders")
        driver.one("#move-items").send_keys("40")
        driver.button_called("Move…").click()
        driver.confirm()
        driver.wait_until(lambda: "40 of 40" in driver.text_of("#move-text"), "the move")
        driver.wait_until(lambda: not driver.is_seen("#said.shown"), "the notice has gone")
    # The first two items, with the forms below them.
    driver.execute_script("""
        [...document.querySelectorAll("#items-list li")].slice(2).forEach((each) => each.remove());
        document.querySelector("#queue-items-part").scrollIntoView();
    """)


def _has_rates(driver: Browser) -> bool:
    return bool(re.search(r"Puts per second\s*\d", str(driver.execute_script("return document.body.innerText"))))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--to", type=Path, default=Path("docs/admin"), metavar="FOLDER")
    folder: Path = parser.parse_args().to
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as profile, started_browser(Path(profile)) as driver:
        for queues in dict.fromkeys(picture.queues for picture in PICTURES):
            options = () if queues < MANY else ("--samples", "60")
            with busy_server(queues, *options) as url:
                for picture in PICTURES:
                    if picture.queues == queues:
                        take(driver, url, picture, folder)
                        print(folder / f"{picture.name}.png")


if __name__ == "__main__":
    main()
