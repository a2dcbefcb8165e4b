"""The settings as ``dump_config`` shows them: with Kestrel's names, and values as in a file.

There are no quotes or brackets. Sizes and durations have units (``16MiB``, ``1m30s``, and ``0`` for zero). Names are
separated by commas, and have a character for each byte (Latin-1), so that encoding the text restores the bytes.
"""

from __future__ import annotations

import attrs

from kestrel.config.model import Config
from kestrel.config.queue_settings import AliasSettings, QueueSettings
from kestrel.config.setting import TABLE, TABLES, settings_of


def queue_config(settings: QueueSettings) -> list[tuple[str, str]]:
    """Return every setting of a queue with its value, in the order of the fields."""
    return _show_settings(settings)


def alias_config(settings: AliasSettings) -> list[tuple[str, str]]:
    """Return the settings of an alias except its name: ``destinationQueues`` as configured, including aliases."""
    return [(name, value) for name, value in _show_settings(settings) if name != "name"]


def server_config(config: Config) -> list[tuple[str, str]]:
    """Return every setting of the server that has a single value."""
    return [
        (setting.kestrel_name, setting.kind.show(getattr(config, field)))
        for field, setting in settings_of(Config).items()
        if setting.kind not in (TABLE, TABLES)
    ]


def _show_settings(settings: attrs.AttrsInstance) -> list[tuple[str, str]]:
    return [
        (setting.kestrel_name, setting.kind.show(getattr(settings, field)))
        for field, setting in settings_of(type(settings)).items()
    ]
