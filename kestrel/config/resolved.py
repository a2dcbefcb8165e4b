"""A configuration with the settings of each queue and the queues of each alias."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from graphlib import TopologicalSorter

import attrs

from kestrel.config.model import AliasSettings, Config, QueueSettings
from kestrel.names import parent_of


class ResolvedConfig:
    """A configuration that can be looked up by queue or alias. With thousands of names it takes about 100 ms to make,
    so a running server makes it in a thread. Raises ValueError if aliases form a cycle.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.settings_for: Callable[[bytes], QueueSettings] = QueueSettingsResolver(config).settings_for
        """Function that returns the settings of a queue."""
        self.alias_queues = resolve_aliases(config.aliases)
        """The queues that an item put to each alias reaches, each once."""


class QueueSettingsResolver:
    """A resolver of settings for any queue name. Its tables grow with the configuration only.

    The setting nearest to the queue wins, even if it is "none". `fanout_only` is always False for a child: it has no
    children of its own, and would lose its items.
    """

    def __init__(self, config: Config) -> None:
        self._default = config.default.over(QueueSettings())
        self._default_of_children = _child_settings(self._default)
        self._by_name: dict[bytes, QueueSettings] = {}
        self._of_children: dict[bytes, QueueSettings] = {}
        names = sorted(config.queues, key=lambda name: parent_of(name) is not None)
        for name in names:  # parents first: a child's settings are based on its parent's
            settings = config.queues[name].over(self._inherited(name))
            child_settings = _child_settings(settings)
            self._of_children[name] = child_settings
            self._by_name[name] = settings if parent_of(name) is None else child_settings

    def settings_for(self, name: bytes) -> QueueSettings:
        """Return the effective settings of a queue. A queue that is not configured itself gets the object that it
        inherits, which it shares with others.
        """
        settings = self._by_name.get(name)
        return self._inherited(name) if settings is None else settings

    def _inherited(self, name: bytes) -> QueueSettings:
        parent = parent_of(name)
        if parent is None:
            return self._default
        return self._of_children.get(parent, self._default_of_children)


def _child_settings(settings: QueueSettings) -> QueueSettings:
    return attrs.evolve(settings, fanout_only=False) if settings.fanout_only else settings


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
