"""The children (``parent+child``) of fanout queues."""

from __future__ import annotations

from typing import Final

from kestrel.names import parent_of

_NONE: Final[list[bytes]] = []


class FanoutChildren:
    """Parents and their children, by name, whether usable now or not."""

    def __init__(self) -> None:
        self._children: dict[bytes, list[bytes]] = {}

    def add(self, name: bytes) -> None:
        """Add a queue. If it is a child, its parent's items go to it from now on."""
        parent = parent_of(name)
        if parent is not None:
            children = self._children.setdefault(parent, [])
            if name not in children:
                children.append(name)
                children.sort()

    def remove(self, name: bytes) -> None:
        """Remove a queue. Its own children stay."""
        parent = parent_of(name)
        if parent in self._children and name in self._children[parent]:
            self._children[parent].remove(name)
            if not self._children[parent]:
                del self._children[parent]

    def children_of(self, name: bytes) -> list[bytes]:
        """Return the children of a queue, in the order of their names."""
        children = self._children.get(name)
        return _NONE if children is None else children
