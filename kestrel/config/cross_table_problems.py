"""Problems between the tables of a file: duplicate names and cycles of items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kestrel.config.cycles import find_cycles
from kestrel.config.item_routes import ItemRoutes, named_tables
from kestrel.config.setting_paths import entry_path, setting_path
from kestrel.config.value_text import show_value


def cross_table_problems(tables: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each problem between the tables."""
    yield from _duplicate_name_problems(tables, "queues")
    yield from _duplicate_name_problems(tables, "aliases")
    routes = ItemRoutes(tables)
    yield from _cycle_problems(routes)
    for path, name in routes.own_error_queues():
        yield f'{path}: items would move from {show_value(name)} to itself; end it by errorQueue = "none" on that queue'


def _duplicate_name_problems(tables: Mapping[str, Any], path: str) -> Iterator[str]:
    seen: set[str] = set()
    for name, _ in named_tables(tables, path):
        if name in seen:
            yield f"{setting_path(entry_path(path, name), 'name')}: another [[{path}]] table has that name"
        seen.add(name)


def _cycle_problems(routes: ItemRoutes) -> Iterator[str]:
    for circle in find_cycles(routes.by_name()):
        way = " -> ".join(show_value(name) for name in (*circle, circle[0]))
        expiry = next(filter(None, map(routes.expiry_setting_path, circle)), None)
        if expiry is None:
            path = setting_path(entry_path("aliases", circle[0]), "destinationQueues")
            yield f"{path}: these aliases form a cycle: {way}"
        else:
            yield (
                f"{expiry}: expired items would move in a cycle: {way}; "
                'end it by expireToQueue = "none" on one of these queues'
            )
