"""The pictures of docs/admin.md, made anew.

    python -m tests.dashboard.pictures --to docs/admin

It needs chromium and chromedriver (Debian: chromium, chromium-driver).
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

from selenium.webdriver import Chrome

from tests.child import Child
from tests.dashboard.browser import (
    body_classes,
    button_called,
    confirm,
    is_seen,
    one,
    open_dashboard,
    save_screenshot,
    set_window,
    started_browser,
    text_of,
    texts_of,
    wait_until,
)

MANY: Final = 2000
WIDTH: Final = 1280
PHONE_WIDTH: Final = 390
PHONE_HEIGHT: Final = 844
LOOKS: Final = (("", False), ("-dark", True))


class Picture(NamedTuple):
    """One of them: of which page, with how many queues, in how many pixels."""

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
    """Where the admin port of a server with so many queues is; the server ends with it."""
    command = [sys.executable, "-m", "tests.dashboard.busy_server", "--queues", str(queues), *options]
    with Child[str](command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.read_line().strip()
        finally:
            process.kill()


def take(driver: Chrome, url: str, picture: Picture, folder: Path) -> None:
    """Take one picture."""
    set_window(driver, picture.width, picture.height, dark=picture.dark)
    open_dashboard(driver, url, picture.fragment)
    wait_until(driver, lambda: "away" not in body_classes(driver), "the server is there")
    if picture.fragment == "#/connections":
        wait_until(driver, lambda: "reports" in text_of(driver, "#connections-list"), "the clients")
    elif picture.fragment != "#/server":
        wait_until(driver, lambda: _has_rates(driver), "rates are known")
    if picture.items:
        _show_items(driver)
    save_screenshot(driver, folder / f"{picture.name}.png", picture.width, picture.height, picture.dark)


def _show_items(driver: Chrome) -> None:
    button_called(driver, "Show the items").click()
    wait_until(driver, lambda: texts_of(driver, "#items-list li"), "the items")
    if not is_seen(driver, "#move-state"):
        one(driver, "#move-to").send_keys("orders")
        one(driver, "#move-items").send_keys("40")
        button_called(driver, "Move…").click()
        confirm(driver)
        wait_until(driver, lambda: "40 of 40" in text_of(driver, "#move-text"), "the move")
        wait_until(driver, lambda: not is_seen(driver, "#said.shown"), "the notice has gone")
    # The first two items, with the forms below them.
    driver.execute_script("""
        [...document.querySelectorAll("#items-list li")].slice(2).forEach((each) => each.remove());
        document.querySelector("#queue-items-part").scrollIntoView();
    """)


def _has_rates(driver: Chrome) -> bool:
    return bool(re.search(r"Puts per second\s*\d", str(driver.execute_script("return document.body.innerText"))))


def main() -> None:
    """Run from the command line."""
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
