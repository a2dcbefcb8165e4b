"""`make docs` builds a site of all pages, without warnings and without parts from other hosts."""

from __future__ import annotations

import html
import importlib.util
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pytest

from tests.once import made_once

ROOT: Final = Path(__file__).parents[2]
PATIENCE_S: Final = 240.0


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site."""
    return made_once(tmp_path_factory, "site", build) / "html"


def build(folder: Path) -> None:
    """Build the site as in the Makefile."""
    recipe = re.search(r"^\t@\$\(VENV\)/bin/python (-m sphinx .*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    command = recipe[1].replace("build/docs", str(folder)).replace("$(ARGS)", "").split()
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def text_of(page: Path) -> str:
    """Return the text between the tags."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", page.read_text())).split())


def test_every_page_is_part_of_the_site(site: Path) -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/README.md")]
    assert [page for page in pages if not (site / page.relative_to(ROOT)).with_suffix(".html").exists()] == []


def test_site_has_a_landing_page_and_a_search(site: Path) -> None:
    assert "url=docs/index.html" in (site / "index.html").read_text()
    assert "Operators" in text_of(site / "docs" / "index.html")
    assert "docs/guide" in (site / "searchindex.js").read_text()


def test_site_has_the_interfaces_with_their_types(site: Path) -> None:
    storage = text_of(site / "docs" / "api" / "storage.html")
    assert "take(opened: bool) → Item | None" in storage
    assert "items: int¶ Number of items in the queue, in memory or not, without open reads." in storage


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    loaded = re.compile(r"<(?:script|img|link|iframe)\b[^>]*?\b(?:src|href)=\"((?:https?:)?//[^\"]+)")
    assert [(page, found) for page in site.rglob("*.html") for found in loaded.findall(page.read_text())] == []
    imported = re.compile(r"(?:@import|url\()\s*[\"']?((?:https?:)?//[^\"')]+)")
    assert [(page, found) for page in site.rglob("*.css") for found in imported.findall(page.read_text())] == []


def test_every_link_finds_its_page_and_anchor(site: Path) -> None:
    places = {page: set(re.findall(r"\bid=\"([^\"]+)\"", page.read_text())) for page in site.rglob("*.html")}
    lost = []
    for page in places:
        for link in re.findall(r"<a\b[^>]*?\bhref=\"([^\"]+)\"", page.read_text()):
            path, _, place = unquote(link).partition("#")
            if ":" in path.partition("/")[0]:
                continue
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (place and target in places and place not in places[target]):
                lost.append((page.relative_to(site), link))
    assert lost == []


def as_restructured(lines: Sequence[str]) -> list[str]:
    """Return a docstring as the site converts it."""
    spec = importlib.util.spec_from_file_location("docstrings", ROOT / "docs" / "_site" / "docstrings.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(module.as_restructured(lines))


def test_only_code_and_emphasis_of_a_docstring_are_markup() -> None:
    assert as_restructured(["A *tick* of `the_reactor_`, *args and name_ a|b; `x`s."]) == [
        r"A *tick* of ``the_reactor_``, \*args and name\_ a\|b; ``x``\ s."
    ]


def test_code_and_tables_of_a_docstring_are_kept() -> None:
    assert as_restructured(["So:", "", "    a = *b", "", "    c", "", "| x | y |", "|---|---|", "| `1` | 2 |"]) == [
        *("So:", "", ".. code-block:: text", "", "    a = *b", "", "    c", ""),
        *(".. list-table::", "   :header-rows: 1", ""),
        *("   * - x", "     - y", "   * - ``1``", "     - 2"),
    ]
