"""The settings as ``dump_config`` shows them: with Kestrel's names, and values as in a file.

There are no quotes or brackets. Sizes and durations have units (``16MiB``, ``1m30s``, and ``0`` for zero). Names are
separated by commas, and have a character for each byte (Latin-1), so that encoding the text restores the bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import attrs

from kestrel.config.model import AliasSettings, Config, QueueOverrides, QueueSettings
from kestrel.config.setting import TABLE, TABLES, settings_of
from kestrel.config.units import entry_path, format_size, setting_path


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


# Settings in a file that have no effect with its storage.


def queue_settings_given(config: Config, names: Collection[str]) -> list[str]:
    """Return the paths of the queue settings that the file gives, of those in `names`, fields of `QueueSettings`."""
    return [path for table, overrides in _queue_tables(config) for path in _given_paths(table, overrides, names)]


def queue_settings_over_limit(config: Config, most: Mapping[str, int]) -> list[str]:
    """Return the queue settings in the file that are above their limits, as ``default.maxMemorySize above 256KiB``.

    `most` has the limits in bytes, by the field's name in `QueueSettings`.
    """
    return [
        f"{setting_path(path, settings_of(QueueSettings)[name].kestrel_name)} above {format_size(bound)}"
        for path, overrides in _queue_tables(config)
        for name, bound in most.items()
        if _is_above(overrides.values.get(name, bound), bound)
    ]


def _is_above(value: int | None, bound: int) -> bool:
    return value is None or value > bound  # None is "none", no limit


def server_settings_given(config: Config, names: Collection[str]) -> list[str]:
    """Return Kestrel's names of the server settings that the file gives, of those in `names`, fields of `Config`."""
    given = config.given & frozenset(names)
    return [setting.kestrel_name for name, setting in settings_of(Config).items() if name in given]


def _queue_tables(config: Config) -> Iterator[tuple[str, QueueOverrides]]:
    yield "default", config.default
    for name, overrides in config.queues.items():
        yield _path_of_queue(name), overrides


def _given_paths(path: str, overrides: QueueOverrides, names: Collection[str]) -> list[str]:
    given = frozenset(overrides.values) & frozenset(names)
    return [
        setting_path(path, setting.kestrel_name)
        for name, setting in settings_of(QueueSettings).items()
        if name in given
    ]


def _path_of_queue(name: bytes) -> str:
    # A configuration made in code may have names that are not UTF-8.
    return entry_path("queues", name.decode(errors="backslashreplace"))
