"""Aliases: names that stand for queues, for puts only."""

from __future__ import annotations

from collections.abc import Mapping

from kestrel.config.resolved import ResolvedConfig


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
        """Count a put of an item of `size` bytes."""
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
