"""Parts of a Markdown page: sections, code blocks and tables."""

from __future__ import annotations

import re


def section(page: str, heading: str) -> str:
    """Return the text below a heading, up to the next heading of its level or above."""
    start = re.search(rf"^(#+) {re.escape(heading)}\n", page, re.MULTILINE)
    assert start, f"no heading {heading!r}"
    return re.split(rf"^#{{2,{len(start[1])}}} ", page[start.end() :], maxsplit=1, flags=re.MULTILINE)[0]


def code_blocks(page: str, language: str) -> list[str]:
    """Return the contents of the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def console_blocks(page: str) -> list[list[tuple[str, str]]]:
    """Return the console blocks, each as its commands with their output."""
    found = []
    for block in code_blocks(page, "console"):
        pairs = [each.partition("\n") for each in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
        found.append([(command, output) for command, _, output in pairs])
    return found


def tables(text: str) -> list[list[list[str]]]:
    """Return the tables as rows of cells. The first row is the header."""
    found = []
    for block in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        header, _, *rows = block.splitlines()
        found.append([[cell.strip() for cell in row.strip("|").split("|")] for row in (header, *rows)])
    return found


def table(text: str, *header: str) -> list[list[str]]:
    """Return the rows of the table whose header begins with these cells."""
    (rows,) = (rows for head, *rows in tables(text) if head[: len(header)] == list(header))
    return rows
