"""Docstrings are plain text with code in backticks, as in Markdown; Sphinx wants reStructuredText."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_CODE = re.compile(r"(``.+?``|`[^`]+`)", re.DOTALL)
_MEANS_SOMETHING = re.compile(r"(?<![\w*])(\*\w[^*]*\*)(?![\w*])|([\\*|]|(?<=\w)_(?=\W|$))")
"""What is emphasized stays so; what else would mean something in reStructuredText is escaped."""
_BULLET = re.compile(r"(- |\d+\. )")


def as_text(text: str) -> str:
    """Sentences: code is literal, and nothing else means anything."""
    parts = _CODE.split(text)
    parts[::2] = [_MEANS_SOMETHING.sub(lambda it: it[1] or f"\\{it[2]}", part) for part in parts[::2]]
    # A literal must not touch a letter: an escaped blank stands between them and is not seen.
    for index in range(1, len(parts), 2):
        after = "\\ " if re.match(r"\w", parts[index + 1]) else ""
        before = "\\ " if re.search(r"\w$", parts[index - 1]) else ""
        parts[index] = f"{before}``{parts[index].strip('`')}``{after}"
    return "".join(parts)


def as_table(rows: Sequence[str]) -> Iterator[str]:
    """A table of Markdown: its head, the line below it, and the rest."""
    yield ".. list-table::"
    yield "   :header-rows: 1"
    yield ""
    for row in (rows[0], *rows[2:]):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip().strip("|"))]
        for index, cell in enumerate(cells):
            yield f"   {'* -' if index == 0 else '  -'} {as_text(cell)}"


def as_restructured(lines: Sequence[str]) -> Iterator[str]:
    """The lines of a docstring as reStructuredText."""
    is_code = False
    for is_blank, group in groupby(lines, lambda line: not line.strip()):
        block = list(group)
        if is_blank:
            yield from block
        elif all(line.startswith("    ") for line in block):
            if not is_code:
                yield from (".. code-block:: text", "")
            is_code = True
            yield from block
            continue
        elif block[0].startswith("|") and len(block) > 1 and set(block[1]) <= set("|-: "):
            yield from as_table(block)
        else:
            text = as_text("\n".join(block)).split("\n")
            for index, line in enumerate(text):
                if index and _BULLET.match(line) and not _BULLET.match(text[index - 1]) and text[index - 1][:1] != " ":
                    yield ""
                yield line
        is_code = is_code and is_blank


def process(app: Sphinx, what: str, name: str, thing: object, options: Any, lines: list[str]) -> None:
    """What autodoc asks of each docstring: change its lines in place."""
    lines[:] = as_restructured(lines)


def setup(app: Sphinx) -> dict[str, bool]:
    """Have autodoc ask."""
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True}
