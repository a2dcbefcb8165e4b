"""What is wrong between the tables of a file: a name given twice, items that would go in a circle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kestrel.config.circles import circles
from kestrel.config.paths import entry_path, joined
from kestrel.config.routes import Routes, named_tables
from kestrel.config.shown import shown


def problems_between(tables: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each mistake in the tables as they were read."""
    yield from _same_names(tables, "queues")
    yield from _same_names(tables, "aliases")
    routes = Routes(tables)
    yield from _circles(routes)
    for path, name in routes.own_error_queues():
        yield f'{path}: items would move from {shown(name)} to itself; end it by errorQueue = "none" on that queue'


def _same_names(tables: Mapping[str, Any], path: str) -> Iterator[str]:
    seen: set[str] = set()
    for name, _ in named_tables(tables, path):
        if name in seen:
            yield f"{joined(entry_path(path, name), 'name')}: another [[{path}]] table has that name"
        seen.add(name)


def _circles(routes: Routes) -> Iterator[str]:
    for circle in circles(routes.by_name()):
        way = " -> ".join(shown(name) for name in (*circle, circle[0]))
        expiry = next(filter(None, map(routes.place_of_expiry, circle)), None)
        if expiry is None:
            path = joined(entry_path("aliases", circle[0]), "destinationQueues")
            yield f"{path}: these aliases go in a circle: {way}"
        else:
            yield (
                f"{expiry}: expired items would go in a circle: {way}; "
                'end it by expireToQueue = "none" on one of these queues'
            )
