"""Every link from one document to another finds its page and its heading."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]

PAGES: Final = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
_FENCED: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)


@cache
def anchors_of(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    headings = _HEADING.findall(_FENCED.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links_of(page: Path) -> list[str]:
    """Where a page leads to within the repository."""
    return [link for link in _LINK.findall(_FENCED.sub("", page.read_text())) if "://" not in link]


def leads_somewhere(page: Path, link: str) -> bool:
    """Whether there is such a file, and such a heading in it."""
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not anchor or anchor in anchors_of(target))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_finds_its_page_and_heading(page: Path) -> None:
    assert [link for link in links_of(page) if not leads_somewhere(page, link)] == []


def test_a_link_that_leads_nowhere_is_found() -> None:
    guide = ROOT / "docs" / "guide.md"
    assert links_of(guide)
    assert leads_somewhere(guide, "protocols.md#errors") and leads_somewhere(guide, "#names")
    assert not any(leads_somewhere(guide, link) for link in ("protocol.md", "protocols.md#mistake", "#mistake"))
