"""The children (``parent+child``) of fanout queues."""

from __future__ import annotations

from typing import Final

from kestrel.names import parent_of

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
        """Return the children of a queue, in the order of their names."""
        children = self.by_parent.get(name)
        return _NONE if children is None else children
