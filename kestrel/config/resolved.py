"""A configuration with the settings of each queue and the queues of each alias."""

from __future__ import annotations

from collections.abc import Callable

from kestrel.config.aliases import resolve_aliases
from kestrel.config.inherit import QueueSettingsResolver
from kestrel.config.model import Config, QueueSettings


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
