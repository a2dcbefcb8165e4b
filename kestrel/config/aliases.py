"""The queues that an alias stands for, and the queues that an alias masks."""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import TopologicalSorter

from kestrel.config.model import AliasSettings, Config


def resolve_aliases(aliases: Mapping[bytes, AliasSettings]) -> dict[bytes, tuple[bytes, ...]]:
    """Return the queues that a put to each alias reaches, each once, in the order in which they are found.

    Destinations are followed depth-first. A name that is both a queue and an alias is the alias. A cycle of aliases
    raises ValueError. A file cannot have one, but a configuration made in code can.
    """
    destinations = {name: alias.destination_queues for name, alias in aliases.items()}
    resolved: dict[bytes, tuple[bytes, ...]] = {}
    for name in TopologicalSorter(destinations).static_order():  # destinations first; a cycle raises CycleError
        if name in destinations:
            queues = (queue for each in destinations[name] for queue in resolved.get(each, (each,)))
            resolved[name] = tuple(dict.fromkeys(queues))
    return {name: resolved[name] for name in aliases}


def masked_queues(config: Config) -> list[bytes]:
    """Return the names of ``[[queues]]`` tables that clients cannot reach, because an alias has the same name."""
    return [name for name in config.queues if name in config.aliases]
