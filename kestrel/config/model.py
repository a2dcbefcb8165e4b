"""The whole configuration. All classes can also be made in code, without a file."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from kestrel.config.queue_settings import AliasSettings, QueueOverrides, QueueSettings
from kestrel.config.server_settings import (
    AdminSettings,
    LoggingSettings,
    Section,
    ServerSettings,
    TlsSettings,
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
    "TlsSettings",
    "ZooKeeperSettings",
]


@attrs.frozen(kw_only=True)
class Config(ServerSettings):
    """A whole configuration. ``Config()`` has the defaults, as without a file."""

    default: QueueOverrides = attrs.field(
        factory=QueueOverrides,
        metadata=setting("default", TABLE, "Settings of all queues without their own."),
    )
    queues: Mapping[bytes, QueueOverrides] = attrs.field(
        factory=dict, metadata=setting("queues", TABLES, "Single queues, by name.")
    )
    aliases: Mapping[bytes, AliasSettings] = attrs.field(
        factory=dict, metadata=setting("aliases", TABLES, "Names that stand for several queues.")
    )
    admin: AdminSettings = attrs.field(
        factory=AdminSettings, metadata=setting("admin", TABLE, "The HTTP port for monitoring.")
    )
    tls: TlsSettings | None = attrs.field(
        default=None, metadata=setting("tls", TABLE, "TLS for all ports of the configuration.")
    )
    zookeeper: ZooKeeperSettings | None = attrs.field(
        default=None, metadata=setting("zookeeper", TABLE, "The server sets that the server joins.")
    )
    logging: LoggingSettings = attrs.field(
        factory=LoggingSettings, metadata=setting("logging", TABLE, "The level, format and destination of the log.")
    )
