"""Which queues an alias stands for, and which queues one hides."""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import TopologicalSorter

from kestrel.config.model import AliasSettings, Config


def resolve_aliases(aliases: Mapping[bytes, AliasSettings]) -> dict[bytes, tuple[bytes, ...]]:
    """For each alias the queues that a put to it reaches: no aliases, each once, in the order they are come upon.

    Destinations are followed in depth, from the first to the last. A name that is both is the alias. Aliases that go
    in a circle are a `ValueError`: no file gives them, but a configuration made by hand can.
    """
    destinations = {name: alias.destination_queues for name, alias in aliases.items()}
    resolved: dict[bytes, tuple[bytes, ...]] = {}
    for name in TopologicalSorter(destinations).static_order():  # destinations first; a circle is its CycleError
        if name in destinations:
            queues = (queue for each in destinations[name] for queue in resolved.get(each, (each,)))
            resolved[name] = tuple(dict.fromkeys(queues))
    return {name: resolved[name] for name in aliases}


def masked_queues(config: Config) -> list[bytes]:
    """Names of ``[[queues]]`` tables that no client gets at, because an alias has the same name."""
    return [name for name in config.queues if name in config.aliases]
