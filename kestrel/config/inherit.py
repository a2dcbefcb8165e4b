"""The inheritance of queue settings: ``parent+child`` <- ``parent`` <- ``[default]`` <- built-in."""

from __future__ import annotations

import attrs

from kestrel.config.model import Config, QueueSettings
from kestrel.names import parent_of


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
