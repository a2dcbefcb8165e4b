"""A configuration with what it says of each name worked out."""

from __future__ import annotations

from collections.abc import Callable

from kestrel.config.aliases import resolve_aliases
from kestrel.config.inherit import QueueSettingsResolver
from kestrel.config.model import Config, QueueSettings


class ResolvedConfig:
    """Which settings a queue has, and which queues an alias leads to. Where a file names thousands of them it takes
    some 100 ms to make: a server that runs makes it in a thread."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.settings_for: Callable[[bytes], QueueSettings] = QueueSettingsResolver(config).settings_for
        """The settings of the queue of that name."""
        self.alias_queues = resolve_aliases(config.aliases)
        """For each alias the queues that an item put to it reaches, each once."""
