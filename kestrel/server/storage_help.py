"""The output of ``twistd kestrel --help-storage``: the available storages, and those that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import fill
from typing import Final

from kestrel.storage.capabilities import CAPABILITIES
from kestrel.storage.interfaces import IStorageFactory
from kestrel.storage.plugins import list_plugins
from kestrel.storage.registry import FACTORIES

MIN_COLUMNS: Final = 40
"""Minimum width of the output; a narrower terminal breaks the lines itself."""


def storage_help(columns: int) -> str:
    """Return the output of --help-storage, wrapped to `columns`, but not below `MIN_COLUMNS`."""
    columns = max(columns, MIN_COLUMNS)
    plugins = list_plugins(FACTORIES)
    lines = ["Storages, by the word before the colon of --storage:"]
    for factory in FACTORIES.values():
        lines += _about(factory, "built in", columns)
    for factory in plugins.usable:
        lines += _about(factory, f"from {factory.origin}", columns)
    lines += _list("Ignored:", plugins.ignored, columns)
    lines += _list("Broken:", plugins.broken, columns)
    return "\n".join(lines) + "\n"


def _about(factory: IStorageFactory, origin: str, columns: int) -> Iterator[str]:
    yield ""
    yield _wrapped(f"{factory.name} ({origin})", columns, "", "  ")
    yield _wrapped(" ".join(factory.help.split()), columns, "  ", "  ")
    for capability in sorted(factory.capabilities):
        yield _item(f"{capability}: {CAPABILITIES[capability]}", columns)


def _list(heading: str, sentences: Sequence[str], columns: int) -> Iterator[str]:
    if sentences:
        yield ""
        yield heading
        yield from (_item(sentence, columns) for sentence in sentences)


def _item(text: str, columns: int) -> str:
    return _wrapped(text, columns, "  - ", "    ")


def _wrapped(text: str, columns: int, first: str, others: str) -> str:
    """Wrap text without breaking paths and options, so that they can be copied."""
    return fill(
        text,
        columns,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
