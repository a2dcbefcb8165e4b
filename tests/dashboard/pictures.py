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
from tests.dashboard.browser import body_classes, open_dashboard, save_screenshot, started_browser, wait_until

MANY: Final = 2000


class Picture(NamedTuple):
    """One of them: of which page, with how many queues, in how many pixels."""

    name: str
    fragment: str
    queues: int
    height: int
    dark: bool = False


PICTURES: Final = (
    Picture("few", "#/", 8, 920),
    Picture("queue", "#/queue/orders", 8, 1240),
    Picture("server", "#/server", 8, 1240),
    Picture("dark", "#/", 8, 920, dark=True),
    Picture("many", "#/", MANY, 920),
)
WIDTH: Final = 1280


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
    open_dashboard(driver, url, picture.fragment)
    wait_until(driver, lambda: "away" not in body_classes(driver), "the server is there")
    if picture.fragment != "#/server":
        wait_until(driver, lambda: _has_rates(driver), "rates are known")
    save_screenshot(driver, folder / f"{picture.name}.png", WIDTH, picture.height, picture.dark)


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
