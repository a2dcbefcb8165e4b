"""The routes of items: to an alias's destinations, a parent's children, or the queue that they expire or fail to.

The routes are read from the tables of a file, not from a `Config`, so that cycles are reported together with all other
mistakes. Malformed values are skipped here, since they are reported elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from kestrel.config.setting import QUEUE_NAME, optional
from kestrel.config.units import entry_path, setting_path

Table = Mapping[str, Any]

_TARGET: Final = optional(QUEUE_NAME)


def named_tables(tables: Table, path: str) -> list[tuple[str, Table]]:
    """Return the ``[[queues]]`` or ``[[aliases]]`` tables that have a name, with the name."""
    entries = tables.get(path)
    if not isinstance(entries, list):
        return []
    return [
        (entry["name"], entry) for entry in entries if isinstance(entry, dict) and isinstance(entry.get("name"), str)
    ]


class ItemRoutes:
    """The routes of items between the names in a file. If several tables have the same name, the last one counts."""

    def __init__(self, tables: Table) -> None:
        self.aliases = dict(named_tables(tables, "aliases"))
        self._queues = dict(named_tables(tables, "queues"))
        default = tables.get("default")
        self._default: Table = default if isinstance(default, dict) else {}

    def by_name(self) -> dict[str, list[str]]:
        """Return for each name the names that its items can go to."""
        destinations = {alias: self._destinations(alias) for alias in self.aliases}
        queues = [*self._queues, *(name for names in destinations.values() for name in names)]
        # "" represents all queues that are not in the file. Their expireToQueue is that of the default table.
        queues += [target for name in (*queues, "") for target in self._expiry(name)[1]]
        children = _children(queues)
        ways = destinations.copy()
        for name in (*queues, *children):
            if name not in destinations:  # an alias masks the queue with its name
                ways[name] = [*self._expiry(name)[1], *children.get(name, ())]
        return ways

    def expiry_setting_path(self, name: str) -> str | None:
        """Return the path of the setting for the expiry target of a queue. None for an alias, or without such a
        setting.
        """
        return None if name in self.aliases else self._expiry(name)[0]

    def own_error_queues(self) -> Iterator[tuple[str, str]]:
        """Yield each queue that is its own errorQueue, after the path of that setting.

        Longer cycles are allowed: an errorQueue whose items expire into their old queue is a delayed retry.
        """
        tables = (self._default, *self._queues.values())
        named = dict.fromkeys(name for table in tables if isinstance(name := table.get("errorQueue"), str))
        for name in named:
            path, targets = self._target("errorQueue", name)
            if path is not None and targets == [name] and name not in self.aliases:
                yield path, name

    def _expiry(self, queue: str) -> tuple[str | None, list[str]]:
        return self._target("expireToQueue", queue)

    def _target(self, setting: str, queue: str) -> tuple[str | None, list[str]]:
        """Return the path of the queue's `setting`, if it is set, and the queue that it names, if any."""
        for path, table in self._tables_from_near_to_far(queue):
            if setting in table:
                target = table[setting]
                return setting_path(path, setting), [target] if _is_queue(target) else []
        return None, []

    def _tables_from_near_to_far(self, queue: str) -> Iterator[tuple[str, Table]]:
        for name in (queue, queue.partition("+")[0]):
            yield entry_path("queues", name), self._queues.get(name, {})
        yield "default", self._default

    def _destinations(self, alias: str) -> list[str]:
        names = self.aliases[alias].get("destinationQueues")
        return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _is_queue(target: object) -> bool:
    try:
        return _TARGET.parse(target) is not None
    except ValueError:
        return False


def _children(queues: Iterable[str]) -> dict[str, list[str]]:
    children = defaultdict(list)
    for name in dict.fromkeys(queues):
        parent, plus, _ = name.partition("+")
        if parent and plus:
            children[parent].append(name)
    return children


def find_cycles(edges: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """Yield cycles, each as its members in order: at least one if there is any.

    The search is depth-first with its own stack, since a file may have a longer chain than Python has stack frames.
    """
    finished: set[str] = set()
    for start in edges:
        way = [start]
        places = {start: 0}
        branches = [iter(edges[start])]
        while way and start not in finished:
            following = next(branches[-1], None)
            if following is None:
                branches.pop()
                finished.add(way[-1])
                del places[way.pop()]
            elif following in places:
                yield way[places[following] :]
            elif following not in finished:
                places[following] = len(way)
                way.append(following)
                branches.append(iter(edges.get(following, ())))
