"""A whole configuration. Nothing here is read from a file: every class can be made by hand, as tests do."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from kestrel.config.queue_settings import AliasSettings, QueueOverrides, QueueSettings
from kestrel.config.server_settings import (
    AdminSettings,
    LoggingSettings,
    Section,
    ServerSettings,
    ZooKeeperSettings,
)
from kestrel.config.setting import setting
from kestrel.config.setting_kinds import TABLE, TABLES

__all__ = [
    "AdminSettings",
    "AliasSettings",
    "Config",
    "LoggingSettings",
    "QueueOverrides",
    "QueueSettings",
    "Section",
    "ServerSettings",
    "ZooKeeperSettings",
]


@attrs.frozen(kw_only=True)
class Config(ServerSettings):
    """Everything that a file can say. ``Config()`` is the server that runs without one."""

    default: QueueOverrides = attrs.field(
        factory=QueueOverrides,
        metadata=setting("default", TABLE, "What holds for every queue that does not say otherwise."),
    )
    queues: Mapping[bytes, QueueOverrides] = attrs.field(
        factory=dict, metadata=setting("queues", TABLES, "Single queues, by name.")
    )
    aliases: Mapping[bytes, AliasSettings] = attrs.field(
        factory=dict, metadata=setting("aliases", TABLES, "Names that stand for several queues.")
    )
    admin: AdminSettings = attrs.field(
        factory=AdminSettings, metadata=setting("admin", TABLE, "The port for people who watch the server.")
    )
    zookeeper: ZooKeeperSettings | None = attrs.field(
        default=None, metadata=setting("zookeeper", TABLE, "Where the server announces itself.")
    )
    logging: LoggingSettings = attrs.field(
        factory=LoggingSettings, metadata=setting("logging", TABLE, "What is logged, how, and where to.")
    )
