"""Aliases: names that stand for queues. Only puts go through them."""

from __future__ import annotations

from collections.abc import Mapping

from kestrel.config.resolved import ResolvedConfig


class Alias:
    """A name, the queues that an item put to it reaches, and what was put."""

    def __init__(self, name: bytes, destinations: tuple[bytes, ...], queues: tuple[bytes, ...]) -> None:
        self.name = name
        self.destinations = destinations
        """As they are configured; they may be aliases themselves."""
        self.queues = queues
        """Each queue that they lead to, once."""
        self.put_items = 0
        self.put_bytes = 0

    def count(self, size: int) -> None:
        """An item of that many bytes was put."""
        self.put_items += 1
        self.put_bytes += size


def rebuild_aliases(old: Mapping[bytes, Alias], resolved: ResolvedConfig) -> dict[bytes, Alias]:
    """The aliases of a new configuration; those that were there before go on counting."""
    aliases = {}
    for name, queues in resolved.alias_queues.items():
        alias = aliases[name] = Alias(name, resolved.config.aliases[name].destination_queues, queues)
        if name in old:
            alias.put_items, alias.put_bytes = old[name].put_items, old[name].put_bytes
    return aliases
