"""The queues that a put to a name leads to: those of an alias, and the children (``parent+child``) of a queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kestrel.config.resolved import ResolvedConfig
from kestrel.names import parent_of


class Alias:
    """An alias, the queues that receive its items, and counts of its puts."""

    def __init__(self, name: bytes, destinations: tuple[bytes, ...], queues: tuple[bytes, ...]) -> None:
        self.name = name
        self.destinations = destinations
        """The configured destinations, which may be aliases."""
        self.queues = queues
        """Each queue that the destinations lead to, once."""
        self.put_items = 0
        self.put_bytes = 0

    def count(self, size: int) -> None:
        self.put_items += 1
        self.put_bytes += size


def rebuild_aliases(old: Mapping[bytes, Alias], resolved: ResolvedConfig) -> dict[bytes, Alias]:
    """Return the aliases of a new configuration. Aliases that existed before keep their counts."""
    aliases = {}
    for name, queues in resolved.alias_queues.items():
        alias = aliases[name] = Alias(name, resolved.config.aliases[name].destination_queues, queues)
        if name in old:
            alias.put_items, alias.put_bytes = old[name].put_items, old[name].put_bytes
    return aliases


_NONE: Final[list[bytes]] = []


class FanoutChildren:
    """Parents and their children, by name, whether usable now or not."""

    def __init__(self) -> None:
        self.by_parent: dict[bytes, list[bytes]] = {}
        """The children of each parent that has any, in the order of their names."""

    def add(self, name: bytes) -> None:
        """Add a queue. If it is a child, its parent's items go to it from now on."""
        parent = parent_of(name)
        if parent is not None:
            children = self.by_parent.setdefault(parent, [])
            if name not in children:
                children.append(name)
                children.sort()

    def remove(self, name: bytes) -> None:
        """Remove a queue. Its own children stay."""
        parent = parent_of(name)
        if parent in self.by_parent and name in self.by_parent[parent]:
            self.by_parent[parent].remove(name)
            if not self.by_parent[parent]:
                del self.by_parent[parent]

    def children_of(self, name: bytes) -> list[bytes]:
        children = self.by_parent.get(name)
        return _NONE if children is None else children
