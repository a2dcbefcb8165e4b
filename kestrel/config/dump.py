"""The settings as ``dump_config`` tells them: by Kestrel's names, with values as one would write them in a file.

There are no quotes or brackets. Sizes and durations have units (``16MiB``, ``1m30s``; nothing is ``0``). Names have
commas between them and a character for each byte (Latin-1), so that encoding the text gives the bytes back.
"""

from __future__ import annotations

import attrs

from kestrel.config.model import Config
from kestrel.config.queue_settings import AliasSettings, QueueSettings
from kestrel.config.setting import settings_of
from kestrel.config.setting_kinds import TABLE, TABLES


def queue_config(settings: QueueSettings) -> list[tuple[str, str]]:
    """Every setting of a queue with its value, in the order of the fields."""
    return _show_settings(settings)


def alias_config(settings: AliasSettings) -> list[tuple[str, str]]:
    """What an alias is set to beside its name: ``destinationQueues`` as they were given, aliases among them."""
    return [(name, value) for name, value in _show_settings(settings) if name != "name"]


def server_config(config: Config) -> list[tuple[str, str]]:
    """Every setting of the server as a whole that is a single value."""
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
