"""Where items can go from a name: to an alias's destinations, a parent's children, the queue they expire or fail to.

It looks at what was read from the file, not at a `Config`, so that circles are found together with all other
mistakes. What is malformed is passed over here; it has its own complaint.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from kestrel.config.setting_kinds import QUEUE_NAME, optional
from kestrel.config.setting_paths import entry_path, setting_path

Table = Mapping[str, Any]

_TARGET: Final = optional(QUEUE_NAME)


def named_tables(tables: Table, path: str) -> list[tuple[str, Table]]:
    """The ``[[queues]]`` or ``[[aliases]]`` tables that have a name, with it."""
    entries = tables.get(path)
    if not isinstance(entries, list):
        return []
    return [
        (entry["name"], entry)
        for entry in entries
        if isinstance(entry, dict) and isinstance(entry.get("name"), str)
    ]


class ItemRoutes:
    """The ways of an item by the names that a file mentions. Of tables of one name it knows the last."""

    def __init__(self, tables: Table) -> None:
        self.aliases = dict(named_tables(tables, "aliases"))
        self._queues = dict(named_tables(tables, "queues"))
        default = tables.get("default")
        self._default: Table = default if isinstance(default, dict) else {}

    def by_name(self) -> dict[str, list[str]]:
        """From each name the names that an item goes on to."""
        destinations = {alias: self._destinations(alias) for alias in self.aliases}
        queues = [*self._queues, *(name for names in destinations.values() for name in names)]
        # "" stands for all queues that the file does not mention: they expire to where the default says.
        queues += [target for name in (*queues, "") for target in self._expiry(name)[1]]
        children = _children(queues)
        ways = destinations.copy()
        for name in (*queues, *children):
            if name not in destinations:  # an alias hides the queue of its name
                ways[name] = [*self._expiry(name)[1], *children.get(name, ())]
        return ways

    def expiry_setting_path(self, name: str) -> str | None:
        """The path of the setting that says where the items of that queue expire to; None for an alias."""
        return None if name in self.aliases else self._expiry(name)[0]

    def own_error_queues(self) -> Iterator[tuple[str, str]]:
        """The queues that are their own errorQueue, each after the path of the setting that says so.

        Longer ways may lead back: an errorQueue whose items expire to where they came from is a delayed retry.
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
        """The path of what sets that queue's `setting`, if anything does, and the queue it names, if it names one."""
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
